"""The noise of a host: what its stock-against-stock blocks say about bias and spread.

Two numbers come out of an A/A, and they play different parts. The *spread* of its log ratios says how many blocks
an A/B will need; a candidate's own spread is already in its Student-t bound, so it must not be counted again in
the threshold. The *bias* of the pipeline (the second launch of a pair runs hotter, one port is slower, ...) is in no
candidate's spread and shifts every result; only the A/A can show it. "Noise" in the accept rule is therefore the
bias that the A/A has shown or cannot rule out:

    noise = max(|mean of the A/A log ratios|, standard error of that mean)

the root of `max(mean^2 - se^2, 0) + se^2`: the squared bias without its sampling error, plus how badly it is
known. Twice that is added to the smallest gain of interest. More A/A blocks make it smaller; 8 are the least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.bounds import deviation, mean_and_error

#: Fewer A/A blocks say too little about a host.
MIN_BLOCKS = 8
RECOMMENDED_BLOCKS = 20


@dataclass(frozen=True)
class Spread:
    """A/A log ratios of one metric: `mean`, sample standard deviation `sd`, number of blocks `n`."""

    mean: float
    sd: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of `values`, at least two."""
        return cls(mean_and_error(values)[0], deviation(values), len(values))


@dataclass(frozen=True)
class Noise:
    """What an A/A says about a host under one regime; all values are natural logarithms of speed ratios.

    Attributes:
        log_ratios: output tokens a second, one value a block, second name over first name.
        latencies: the same for p99 latencies, by metric name; positive means the second was slower.
        host: host class the blocks ran on.
        regime: what was asked of the servers.
    """

    log_ratios: tuple[float, ...]
    latencies: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    host: str = ""
    regime: str = ""

    def __post_init__(self) -> None:
        if len(self.log_ratios) < MIN_BLOCKS:
            raise SpecPilotError(
                f"an A/A of {len(self.log_ratios)} blocks says too little about this host",
                fix=f"run `specpilot aa` with at least {MIN_BLOCKS} blocks, better {RECOMMENDED_BLOCKS}",
            )
        if not all(math.isfinite(value) for value in self.log_ratios):
            raise SpecPilotError("the A/A has a block without a speed", fix="run `specpilot aa` again")

    @property
    def value(self) -> float:
        """The noise of the accept rule; see the module's docstring."""
        mean, error = mean_and_error(self.log_ratios)
        return max(abs(mean), error)

    @property
    def spread(self) -> Spread:
        """Mean and standard deviation of the log speed ratios."""
        return Spread.of(self.log_ratios)

    @property
    def q95(self) -> float:
        """The 95th percentile of the absolute log ratio of one block."""
        rows = sorted(map(abs, self.log_ratios))
        return rows[min(len(rows) - 1, math.ceil(0.95 * len(rows)) - 1)]

    def latency_spread(self, metric: str) -> Spread | None:
        """Return the spread of a latency metric, None when the A/A has fewer than eight values of it."""
        values = [v for v in self.latencies.get(metric, ()) if math.isfinite(v)]
        return Spread.of(values) if len(values) >= MIN_BLOCKS else None

    def to_json(self) -> dict[str, Any]:
        """Return the A/A with its derived figures as JSON values."""
        return {
            "host": self.host,
            "regime": self.regime,
            "blocks": len(self.log_ratios),
            "noise": self.value,
            "mean": self.spread.mean,
            "sd": self.spread.sd,
            "q95": self.q95,
            "log_ratios": list(self.log_ratios),
            "latencies": {name: list(values) for name, values in self.latencies.items()},
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Noise:
        """Read what `to_json` gave; derived figures are computed anew."""
        try:
            latencies = {str(k): tuple(map(float, v)) for k, v in (row.get("latencies") or {}).items()}
            ratios = tuple(map(float, row["log_ratios"]))
            return cls(ratios, latencies, str(row.get("host", "")), str(row.get("regime", "")))
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise SpecPilotError(f"not an A/A measurement ({exc!r})", fix="run `specpilot aa` again") from exc
