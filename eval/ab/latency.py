"""The latency gate: a candidate's p99 times must be no worse than the host's noise explains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specpilot_sglang.eval.ab.bounds import mean_and_error, quantile_t
from specpilot_sglang.eval.ab.noise import Noise

#: One-sided error probability of an honest candidate failing one metric.
_ALPHA = 0.01
#: Worsening that is never held against a candidate: no A/A of a few blocks resolves less in a 99th percentile.
TOLERANCE = 0.02


@dataclass(frozen=True)
class LatencyCheck:
    """One metric; log ratios, positive is slower than the incumbent.

    Attributes:
        metric: `ttft_p99_s` or `itl_p99_s`.
        mean: mean over the blocks.
        limit: what noise explains.
        ok: whether `mean` is at most `limit`.
        reason: one sentence.
    """

    metric: str
    mean: float
    limit: float
    ok: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the check as JSON values."""
        return asdict(self)


def check_latencies(worsening: Mapping[str, Sequence[float]], noise: Noise) -> list[LatencyCheck]:
    """Compare each metric's mean log ratio with what stock against stock gave.

    The limit is a prediction bound: the A/A's mean, plus Student's t times the A/A's standard deviation times
    sqrt(1/n + 1/m), for n blocks here and m there. The spread is the A/A's, never the candidate's own: one that
    stalls now and then would widen its own limit.

    Args:
        worsening: log(candidate / incumbent) by metric, one value a block.
        noise: the host's A/A.
    """
    return [_check(metric, list(values), noise) for metric, values in worsening.items()]


def _check(metric: str, values: list[float], noise: Noise) -> LatencyCheck:
    known = noise.latency_spread(metric)
    if known is None:
        return LatencyCheck(metric, math.nan, math.nan, False, f"the A/A has no {metric}: run `specpilot aa` again")
    if not values or not all(map(math.isfinite, values)):
        return LatencyCheck(metric, math.nan, math.nan, False, f"{metric} is missing in a block")
    mean = mean_and_error(values)[0]
    margin = quantile_t(_ALPHA, known.n - 1) * known.sd * math.sqrt(1 / len(values) + 1 / known.n)
    limit = max(known.mean + margin, math.log1p(TOLERANCE))
    verb = "is within" if mean <= limit else "is beyond"
    reason = f"{metric} {math.expm1(mean):+.1%} over {len(values)} blocks {verb} the noise's {math.expm1(limit):+.1%}"
    return LatencyCheck(metric, mean, limit, mean <= limit, reason)
