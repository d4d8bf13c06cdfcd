"""Intervals of a ratio from launch-paired rounds, with the launch noise of earlier nights pooled in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Sum of squared deviations of log ratios from their run's mean, and its degrees of freedom."""

    squares: float = 0.0
    freedom: int = 0

    def __add__(self, other: Spread) -> Spread:
        return Spread(self.squares + other.squares, self.freedom + other.freedom)

    @property
    def deviation(self) -> float:
        """Standard deviation of one launch pair's log ratio; NaN without degrees of freedom."""
        return math.sqrt(self.squares / self.freedom) if self.freedom else math.nan


@dataclass(frozen=True)
class Ratio:
    """A ratio of speeds: geometric mean over rounds with a two-sided interval; bounds are NaN when unknown."""

    value: float
    low: float
    high: float
    rounds: int
    spread: Spread
    deviation: float

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)


def spread_of(logs: Sequence[float]) -> Spread:
    """Return the spread of one run's log ratios."""
    if not logs:
        return Spread()
    mean = math.fsum(logs) / len(logs)
    return Spread(math.fsum((x - mean) ** 2 for x in logs), len(logs) - 1)


def ratio(logs: Sequence[float], earlier: Spread | None = None, confidence: float = 0.95) -> Ratio:
    """Return the ratio and its Student-t interval.

    Args:
        logs: one log ratio a round, both servers freshly launched in it.
        earlier: spread of the same ratio inside earlier runs on the same machine. Two rounds alone know their
            own noise badly (t of one degree of freedom is 12.7); the noise of launches is the machine's and
            does not change with the code under test.
        confidence: two-sided.
    """
    if not logs:
        return Ratio(math.nan, math.nan, math.nan, 0, Spread(), math.nan)
    mean, own = math.fsum(logs) / len(logs), spread_of(logs)
    pooled = own + (earlier or Spread())
    if not pooled.freedom:
        return Ratio(math.exp(mean), math.nan, math.nan, len(logs), own, math.nan)
    from scipy.stats import t

    half = float(t.ppf((1 + confidence) / 2, pooled.freedom)) * pooled.deviation / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs), own, pooled.deviation)
