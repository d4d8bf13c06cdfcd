"""What a demonstration runs: model, drafter, prompts, lengths and the three servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specpilot_sglang.eval import suites
from specpilot_sglang.eval.presets import ar_args, dflash_args, float32_args, specpilot_args
from specpilot_sglang.eval.suites import Item

SUITES = ("gsm8k", "humaneval", "mt-bench")

#: Items at the end of each suite that only warm a server up; timed prompts come from its start.
WARM_UP_ITEMS = 1


@dataclass(frozen=True)
class Arm:
    """One server under comparison.

    Attributes:
        name: `ar`, `stock` or `specpilot`.
        label: for tables and plots.
        args: server arguments.
    """

    name: str
    label: str
    args: list[str]


@dataclass(frozen=True)
class Plan:
    """A demonstration.

    Attributes:
        model: target's folder.
        draft: drafter's folder.
        overlay: overlay name or path; None lets the plugin choose.
        prompts: timed prompts a suite.
        max_new_tokens: most tokens an answer.
        dtype: weights and activations of all servers.
        suites: suite names.
        about_model: what the target's weights are, for the report.
        server_args: further arguments of every server.
    """

    model: Path
    draft: Path
    overlay: str | None = None
    prompts: int = 4
    max_new_tokens: int = 96
    dtype: str = "bfloat16"
    suites: Sequence[str] = SUITES
    about_model: str = ""
    server_args: Sequence[str] = field(default=())

    def arms(self) -> list[Arm]:
        """Return AR, stock and plugin, in the order they run."""
        model, draft = self.model, self.draft
        extra = [*(float32_args() if self.dtype == "float32" else []), *self.server_args]
        return [
            Arm("ar", "AR", ar_args(model, dtype=self.dtype) + extra),
            Arm("stock", "stock DFLASH", dflash_args(model, draft, dtype=self.dtype) + extra),
            Arm("specpilot", "specpilot", specpilot_args(model, draft, self.overlay, dtype=self.dtype) + extra),
        ]

    def timed_items(self) -> list[Item]:
        """Return the measured prompts, suite by suite; none of them repeats."""
        return [item for suite in self.suites for item in suites.load(suite, limit=self.prompts)]

    def warm_up_items(self) -> list[Item]:
        """Return prompts for warming up, none of which is measured."""
        return [item for suite in self.suites for item in suites.load(suite)[-WARM_UP_ITEMS:]]
