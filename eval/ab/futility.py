"""Giving a candidate up early: the chance, by what is known so far, that the last look would still accept it.

Most candidates of a search gain nothing, and without this each of them takes as many blocks as a good one. The
predictive probability of success is standard in adaptive trials (Spiegelhalter, Freedman and Blackburn 1986). With a
flat prior, `n` blocks of mean `m` and standard deviation `s` with `f` degrees of freedom say of the mean of all `N`

    M = m + s * sqrt(1/n - 1/N) * t_f

and the last look accepts when M is above its threshold by `t(alpha, N - 1) * s / sqrt(N)`. Two or three blocks hardly
know their own spread; the host's A/A knows it, so its degrees of freedom are pooled with theirs. Stopping for futility
never accepts anything, so that it cannot raise the false-accept rate whatever the A/A says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from specpilot_sglang.eval.ab.bounds import deviation, mean_and_error, quantile_t
from specpilot_sglang.eval.ab.noise import Spread


def chance_of_acceptance(
    values: Sequence[float], threshold: float, *, last: int, alpha: float, known: Spread | None = None
) -> float:
    """Return the predictive probability that the one-sided bound after `last` blocks passes `threshold`.

    Args:
        values: log ratios of the blocks so far, at least two and fewer than `last`.
        threshold: log ratio that the lower bound must pass.
        last: blocks at the last look.
        alpha: error probability of the bound there.
        known: spread of the host's A/A; without it only the blocks' own counts.
    """
    count, mean = len(values), mean_and_error(values)[0]
    spread, freedom = _pooled(values, known)
    need = threshold + quantile_t(alpha, last - 1) * spread / math.sqrt(last)
    if spread == 0:
        return float(mean > need)
    return _above((need - mean) / (spread * math.sqrt(1 / count - 1 / last)), freedom)


def _pooled(values: Sequence[float], known: Spread | None) -> tuple[float, int]:
    freedom = len(values) - 1
    squares = freedom * deviation(values) ** 2
    if known is not None:
        freedom, squares = freedom + known.n - 1, squares + (known.n - 1) * known.sd**2
    return math.sqrt(squares / freedom), freedom


@lru_cache(maxsize=4096)
def _above(value: float, freedom: int) -> float:
    from scipy.stats import t

    return float(t.sf(value, freedom))
