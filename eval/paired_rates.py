"""The difference of two error rates at the same positions, with an upper bound."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass


@dataclass(frozen=True)
class Excess:
    """A paired difference of rates.

    Attributes:
        excess: first rate minus second, NaN without positions.
        upper: one-sided upper bound; 1 without positions.
    """

    excess: float
    upper: float


def excess(groups: Sequence[tuple[Set[int], Set[int], int]], confidence: float = 0.95) -> Excess:
    """Return how far the first error rate exceeds the second, both over the same positions.

    The bound is the larger of two. Tango's score bound for paired proportions (Stat. Med. 17, 1998) is right also
    with few or no errors but takes positions as independent; Student's t over groups (ratio of sums, delta method)
    allows errors of one request to come together but is blind when no group has any.

    Args:
        groups: per request the positions at which the first and the second were wrong, and how many were judged.
        confidence: of the one-sided bound.
    """
    from scipy.stats import norm, t

    total = sum(n for *_, n in groups)
    if not total:
        return Excess(math.nan, 1.0)
    first_only = sum(len(a - b) for a, b, _ in groups)
    second_only = sum(len(b - a) for a, b, _ in groups)
    difference = (first_only - second_only) / total
    bounds = [score_bound(first_only, second_only, total, float(norm.ppf(confidence)))]
    count = len(groups)
    if count > 1:
        residuals = [len(a - b) - len(b - a) - difference * n for a, b, n in groups]
        variance = sum(r * r for r in residuals) / (count - 1) * count
        bounds.append(difference + float(t.ppf(confidence, count - 1)) * math.sqrt(variance) / total)
    return Excess(difference, min(1.0, max(bounds)))


def score_bound(first_only: int, second_only: int, total: int, z: float) -> float:
    """Return Tango's upper score bound of a paired difference of proportions.

    Args:
        first_only: pairs with an error of the first only.
        second_only: pairs with an error of the second only.
        total: pairs, at least one.
        z: standard normal quantile of the confidence.
    """
    from scipy.optimize import brentq

    estimate = (first_only - second_only) / total

    def excess_score(delta: float) -> float:
        return first_only - second_only - total * delta + z * math.sqrt(total * _variance(delta))

    def _variance(delta: float) -> float:
        # Maximum-likelihood share of second-only errors when the difference is `delta`.
        a, b = 2.0 * total, -first_only - second_only + (2 * total - first_only + second_only) * delta
        share = (math.sqrt(max(0.0, b * b + 4 * a * second_only * delta * (1 - delta))) - b) / (2 * a)
        return max(0.0, 2 * share + delta * (1 - delta))

    low = estimate + 1e-9  # without errors the score is also zero at the estimate itself
    if low >= 1.0 or excess_score(1.0) >= 0:
        return 1.0
    return float(brentq(excess_score, low, 1.0, xtol=1e-12)) if excess_score(low) > 0 else estimate
