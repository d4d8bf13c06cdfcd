"""The few statistics of the reports: exact binomial intervals, and ratios of sums with their standard error."""

from __future__ import annotations

import math
from collections.abc import Sequence


def binomial_interval(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) two-sided interval of a rate; (0, 1) without trials.

    It treats positions as independent. Positions of one request are not quite, so it is a little narrow.
    """
    if trials == 0:
        return 0.0, 1.0
    from scipy.stats import binomtest

    interval = binomtest(hits, trials).proportion_ci(confidence_level=confidence, method="exact")
    return float(interval.low), float(interval.high)


def ratio_of_sums(tops: Sequence[float], bottoms: Sequence[float]) -> tuple[float, float]:
    """Return `sum(tops) / sum(bottoms)` and its standard error over requests (delta method).

    Both are NaN when the bottoms sum to zero; the error is NaN for fewer than two requests.
    """
    count, total = len(tops), sum(bottoms)
    if total == 0:
        return math.nan, math.nan
    ratio = sum(tops) / total
    if count < 2:
        return ratio, math.nan
    mean = total / count
    residual = sum((t - ratio * b) ** 2 for t, b in zip(tops, bottoms, strict=True)) / (count - 1)
    return ratio, math.sqrt(residual / count) / mean
