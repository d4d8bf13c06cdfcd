"""One direction: a group of settings and what could be gained there."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

Choice = int | float | bool | str | None


class Parameter(BaseModel):
    """One typed setting of an overlay.

    Attributes:
        key: path in `overlay.yaml`, such as `server_args.page_size`; `patches.0` is whether the patch stays.
        choices: values to try; None leaves the key out.
        predicted: choice, as JSON text -> gain that the cost model predicts over the incumbent.
        sets: choice, as JSON text -> other keys that must change with it, or the overlay would contradict itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    choices: tuple[Choice, ...]
    predicted: dict[str, float] = Field(default_factory=dict)
    sets: dict[str, dict[str, Choice]] = Field(default_factory=dict)


class Direction(BaseModel):
    """Where an agent is sent.

    Attributes:
        name: short, unique.
        share: part of a step's time that is lost here, 0 to 1; the most that could be gained.
        why: one sentence for the agent.
        parameters: settings that bear on it; empty for one that only code can follow.
        source: `cost` from a measured table, `default` without one, `explorer` proposed by an agent.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    share: float = Field(ge=0, le=1)
    why: str = Field(max_length=400)
    parameters: tuple[Parameter, ...] = ()
    source: str = "default"

    def to_json(self) -> dict[str, Any]:
        """Return the direction as JSON values."""
        return self.model_dump(mode="json")
