"""The recorded evidence of one trial, read back from its folder; the judge sees nothing else.

frozen.json          the candidate, and hashes of judge and client, before anything ran
noise.json           the host's A/A
rule.json            the accept rule
selection/           journal of the blocks that selected it
sealed.json          prompts drawn after freezing
confirmation/        journal of fresh blocks on sealed prompts
forcing/NAME.json    token forcing of each arm on sealed prompts, margins by the AR server
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.block import Block
from specpilot_sglang.eval.ab.journal import Journal
from specpilot_sglang.eval.ab.measure import log_ratios
from specpilot_sglang.eval.ab.noise import Noise
from specpilot_sglang.eval.ab.rule import Rule
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.loop.judge.freeze import Frozen, load_frozen
from specpilot_sglang.loop.judge.sealed import Sealed, load_sealed
from specpilot_sglang.loop.judge.timed import TimedScore


@dataclass(frozen=True)
class Evidence:
    """What the judge decides on.

    Attributes:
        frozen: the candidate.
        noise: the host's A/A; None when none was measured.
        rule: the accept rule.
        selection: blocks on public prompts.
        confirmation: blocks on sealed prompts; empty before the selection accepted.
        sealed: the sealed prompts; None before they were drawn.
        forcing: token forcing by arm name.
        timed: score of the timed answers by arm name; empty before they were scored.
        failures: failed attempts of both journals.
        dtype: data type the servers compute in.
    """

    frozen: Frozen
    noise: Noise | None
    rule: Rule
    selection: tuple[Block, ...]
    confirmation: tuple[Block, ...] = ()
    sealed: Sealed | None = None
    forcing: Mapping[str, ForcingReport] = field(default_factory=dict)
    timed: Mapping[str, TimedScore] = field(default_factory=dict)
    failures: tuple[Mapping[str, Any], ...] = ()
    dtype: str = "bfloat16"

    @property
    def confirming(self) -> Rule:
        """The rule for the sealed prompts: it knows the selection, and for how many blocks prompts were drawn."""
        selecting = log_ratios(self.selection, self.incumbent, self.candidate)
        most = None if self.sealed is None else len(self.sealed.items) // self.sealed.per_block
        return self.rule.confirming(selecting, most)

    @property
    def incumbent(self) -> str:
        """Name of the incumbent's arm."""
        return self.frozen.incumbent.name

    @property
    def candidate(self) -> str:
        """Name of the candidate's arm."""
        return self.frozen.candidate.name

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks, selection first."""
        return (*self.selection, *self.confirmation)


def load_evidence(folder: Path) -> Evidence:
    """Read a trial's evidence; parts that were not reached yet are empty.

    Raises:
        SpecPilotError: the frozen candidate is missing, or a file is damaged.
    """
    frozen = load_frozen(folder)
    journals = [Journal(folder / name) for name in ("selection", "confirmation")]
    reports = {f.stem: ForcingReport.from_json(_json(f)) for f in sorted((folder / "forcing").glob("*.json"))}
    timed = _json(folder / "timed.json") if (folder / "timed.json").exists() else {}
    args = frozen.candidate.args
    return Evidence(
        frozen=frozen,
        noise=Noise.from_json(_json(folder / "noise.json")) if (folder / "noise.json").exists() else None,
        rule=_rule(folder / "rule.json"),
        selection=tuple(journals[0].blocks()),
        confirmation=tuple(journals[1].blocks()),
        sealed=load_sealed(folder) if (folder / "sealed.json").exists() else None,
        forcing=reports,
        timed={name: TimedScore(**row) for name, row in timed.items()},
        failures=tuple(failure for journal in journals for failure in journal.failures()),
        dtype=args[args.index("--dtype") + 1] if "--dtype" in args else "bfloat16",
    )


def _rule(path: Path) -> Rule:
    if not path.exists():
        return Rule()
    row: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in _json(path).items()
    }
    return Rule(**row)


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as exc:
        raise SpecPilotError(f"cannot read the evidence ({exc})", where=path, fix="measure it again") from exc
