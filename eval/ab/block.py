"""One block: both arms launched afresh on one host, asked the same prompts, one right after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.durable import sha256_of
from specpilot_sglang.eval.load.results import LoadResult, load_result

#: Latency metrics whose ratios are gated: property of `LoadResult`.
LATENCIES = ("ttft_p99_s", "itl_p99_s")


@dataclass(frozen=True)
class ArmRun:
    """One launch of one arm and its load.

    Attributes:
        arm: the arm's name.
        position: 0 when it ran first in its block, else 1.
        command: the server's command line.
        start_s: seconds until the server answered.
        outside_s: seconds from handing the workload to the client until its result was there, by our own clock.
        load_file: the `LoadResult`, relative to the journal's folder.
        load_sha256: hash of that file when the block was written.
        extra: further evidence that was taken on this server after the load.
    """

    arm: str
    position: int
    command: tuple[str, ...]
    start_s: float
    outside_s: float
    load_file: str
    load_sha256: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """A finished block. A run's file is read when first asked for, and its hash checked.

    Attributes:
        index: position in the experiment, from 0.
        runs: by arm name, in the order they ran.
        items: ids of the prompts.
        prompts_sha256: hash over the prompts' texts.
        attempt: 1, or 2 after an infrastructure failure.
        began: wall time at its start, seconds since the epoch.
        ended: wall time at its end.
        root: the journal's folder.
    """

    index: int
    runs: Mapping[str, ArmRun]
    items: tuple[str, ...]
    prompts_sha256: str
    attempt: int
    began: float
    ended: float
    root: Path = field(compare=False)

    @cached_property
    def loads(self) -> dict[str, LoadResult]:
        """The load of each arm, by arm name.

        Raises:
            SpecPilotError: a file is missing, unreadable, or not the one that was written.
        """
        return {name: self._load(run) for name, run in self.runs.items()}

    def log_ratio(self, incumbent: str, candidate: str) -> float:
        """Return log(candidate's output tokens a second / incumbent's); NaN when one has none."""
        return ratio(self.loads[candidate].output_tok_s, self.loads[incumbent].output_tok_s)

    def latency_log_ratio(self, metric: str, incumbent: str, candidate: str) -> float:
        """Return log(candidate's / incumbent's) of a latency in `LATENCIES`; positive is slower."""
        return ratio(getattr(self.loads[candidate], metric), getattr(self.loads[incumbent], metric))

    def _load(self, run: ArmRun) -> LoadResult:
        path = self.root / run.load_file
        if not path.is_file() or sha256_of(path) != run.load_sha256:
            what = "the load's file is missing" if not path.is_file() else "the load's file was changed afterwards"
            raise SpecPilotError(what, where=path, fix="run the experiment again in another folder")
        return load_result(path)

    def to_json(self) -> dict[str, Any]:
        """Return the block as JSON values, without its root."""
        plain = {key: value for key, value in vars(self).items() if key not in ("root", "loads", "runs")}
        return {**plain, "items": list(self.items), "runs": {name: asdict(run) for name, run in self.runs.items()}}

    @classmethod
    def from_json(cls, row: Mapping[str, Any], root: Path) -> Block:
        """Read what `to_json` gave; raises KeyError, TypeError or ValueError when it is something else."""
        runs = {name: ArmRun(**{**run, "command": tuple(run["command"])}) for name, run in row["runs"].items()}
        own = {key: row[key] for key in ("index", "prompts_sha256", "attempt", "began", "ended")}
        return cls(**own, items=tuple(row["items"]), runs=runs, root=root)


def ratio(top: float, bottom: float) -> float:
    """Return log(top / bottom), NaN unless both are positive."""
    return math.log(top / bottom) if top > 0 and bottom > 0 else math.nan
