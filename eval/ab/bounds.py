"""Bounds of a mean log ratio: Student's t decides, BCa and a sign-flip test are shown beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

#: Blocks under which a BCa bound is too narrow to be looked at (false accepts of 7 to 11% at a nominal 5%).
BCA_FROM = 20
#: Up to this many blocks the sign-flip test enumerates every flip.
_EXACT_FLIPS = 14
_RESAMPLES = 9999


def lower_t(values: Sequence[float], alpha: float) -> float:
    """Return the one-sided Student-t lower bound of the mean at confidence `1 - alpha`; -inf below two values."""
    mean, error = mean_and_error(values)
    return mean - quantile_t(alpha, len(values) - 1) * error if len(values) > 1 else -math.inf


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; NaN where there are too few values."""
    if not values:
        return math.nan, math.nan
    mean = math.fsum(values) / len(values)
    return mean, deviation(values) / math.sqrt(len(values))


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation; NaN below two values."""
    return float(np.std(np.asarray(values, dtype=np.float64), ddof=1)) if len(values) > 1 else math.nan


@lru_cache(maxsize=256)
def quantile_t(alpha: float, freedom: int) -> float:
    """Return Student's t quantile that `alpha` of the distribution lies above."""
    from scipy.stats import t

    return float(t.isf(alpha, freedom))


def lower_bca(values: Sequence[float], alpha: float = 0.05, seed: int = 0) -> float:
    """Return the one-sided BCa bootstrap lower bound of the mean (Efron 1987); NaN when it is undefined.

    Shown, never decisive: below `BCA_FROM` blocks it is too narrow.
    """
    from scipy.stats import bootstrap

    if len(values) < 2 or deviation(values) == 0:
        return math.nan
    done = bootstrap(
        (np.asarray(values),),
        np.mean,
        confidence_level=1 - alpha,
        alternative="greater",
        method="BCa",
        n_resamples=_RESAMPLES,
        rng=np.random.default_rng(seed),
    )
    return float(done.confidence_interval.low)


def sign_flip_p(values: Sequence[float], shift: float = 0.0, seed: int = 0) -> float:
    """Return the p-value of a one-sided sign-flip test that the centre of `values` is above `shift`.

    Exact up to 14 blocks, where the smallest possible value is 1 in 2^n. It takes the distribution around `shift`
    to be symmetric, which a null pair of arms in random order is by construction.
    """
    from scipy.stats import permutation_test

    if not values:
        return math.nan
    moved = np.asarray(values, dtype=np.float64) - shift
    done = permutation_test(
        (moved,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        alternative="greater",
        n_resamples=2 ** len(values) if len(values) <= _EXACT_FLIPS else _RESAMPLES,
        rng=np.random.default_rng(seed),
    )
    return float(done.pvalue)
