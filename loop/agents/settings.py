"""Which agent runs, and what it may use and spend."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specpilot_sglang.loop.jail.gateway import ALLOWED_HOSTS
from specpilot_sglang.loop.jail.limits import Limits
from specpilot_sglang.loop.jail.usage import Caps

Preset = Literal["tuner", "claude", "claude-sdk", "command"]


class AgentSettings(BaseModel):
    """The agents of a loop.

    Attributes:
        preset: `tuner` needs no key; `claude` runs the Claude Code command line, `claude-sdk` the Claude Agent SDK.
        command: program and arguments, for the preset `command`; it reads `task.json` and edits files.
        program: path of the `claude` program; found on PATH or in the SDK's package by default.
        model: model's name; the program's own default when unset.
        upstream: base address of the model API; None gives a `command` agent no way to a model.
        key_variable: variable of the controller's environment that holds the API key.
        allowed_hosts: hosts that `upstream` may be on.
        tool_calls: most tool calls of one run.
        caps: what one run may spend.
        limits: what one run may use.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    preset: Preset = "tuner"
    command: tuple[str, ...] = Field(default=(), strict=False)
    program: str | None = None
    model: str | None = None
    upstream: str | None = None
    key_variable: str = Field(default="ANTHROPIC_API_KEY", pattern=r"^[A-Z][A-Z0-9_]*$")
    allowed_hosts: tuple[str, ...] = Field(default=ALLOWED_HOSTS, strict=False)
    tool_calls: int = Field(default=200, ge=1)
    caps: Caps = Caps()
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _command_belongs_to_command(self) -> AgentSettings:
        if (self.preset == "command") != bool(self.command):
            raise ValueError("give `command` with preset command, and only with it")
        return self

    @property
    def url(self) -> str | None:
        """Base address of the model API; None for agents without a model."""
        talks = self.preset in ("claude", "claude-sdk")
        return self.upstream or ("https://api.anthropic.com" if talks else None)
