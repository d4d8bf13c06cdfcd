"""One entry of the memory."""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Entry(BaseModel):
    """What is known about one change, or one fact that holds before any was tried.

    Gains are shares of the incumbent's output tokens a second: 0.05 is 5% faster.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    deployment: str = Field(max_length=120, description="Overlay's name, or `any`.")
    mechanism: str = Field(max_length=60, description="Part of the system: `verify`, `block-size`, `w12`, ...")
    hypothesis: str = Field(max_length=600, description="Why it should help, or the fact itself.")
    change: str = Field(default="", max_length=600, description="What was changed: a few words, or key and value.")
    predicted: float | None = Field(default=None, description="Predicted gain.")
    measured: float | None = Field(default=None, description="Measured gain, mean of paired blocks.")
    lower: float | None = Field(default=None, description="Lower 95% bound of the gain.")
    verdict: str = Field(default="fact", max_length=40, description="The judge's status, `refused`, or `fact`.")
    reason: str = Field(default="", max_length=600, description="Why the verdict is what it is.")
    scope: str = Field(default="", max_length=300, description="Where it holds: versions, GPU, concurrency.")
    links: tuple[str, ...] = Field(default=(), max_length=8, description="Issues, files or symbols to look at.")
    origin: Literal["seed", "loop"] = "loop"

    @property
    def key(self) -> str:
        """What makes two entries the same: deployment, mechanism, change and hypothesis, wording aside."""
        parts = (self.deployment, self.mechanism, self.change or self.hypothesis)
        text = "\n".join(" ".join(part.lower().split()) for part in parts)
        return hashlib.sha256(f"{text}\n{self.verdict == 'fact'}".encode()).hexdigest()[:16]
