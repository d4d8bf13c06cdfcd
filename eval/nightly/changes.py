"""Change points over a figure's history: E-divisive with a t-test, by Apache Otava."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from specpilot_sglang.errors import SpecPilotError

#: Runs that one look of the detector spans.
WINDOW = 50


@dataclass(frozen=True)
class Change:
    """A lasting change of level.

    Attributes:
        index: first point of the new level.
        before, after: means on both sides, up to the neighbouring change points.
        pvalue: of the t-test between both sides.
    """

    index: int
    before: float
    after: float
    pvalue: float

    @property
    def relative(self) -> float:
        """`after / before - 1`; infinite when it rose from zero."""
        if self.before:
            return self.after / self.before - 1
        return math.copysign(math.inf, self.after) if self.after else 0.0


def require_otava() -> None:
    """Raise `SpecPilotError` when the library is missing; call it before the servers."""
    if find_spec("otava") is None:
        fix = "pip install 'specpilot-sglang[nightly]'"
        raise SpecPilotError("the nightly run needs the package apache-otava", fix=fix)


def find_changes(values: Sequence[float], *, max_pvalue: float, min_change: float) -> list[Change]:
    """Return the change points of `values` in order.

    Args:
        values: finite figures in the order of the runs.
        max_pvalue: of a change that counts.
        min_change: relative change under which it does not, 0.02 being 2%.
    """
    if len(values) < 4 or min(values) == max(values):
        return []
    detect = import_module("otava.analysis").compute_change_points
    with warnings.catch_warnings():  # a side without any spread makes scipy warn; its p-value is 0 then, as it should
        warnings.simplefilter("ignore", RuntimeWarning)
        found, _ = detect(list(values), window_len=WINDOW, max_pvalue=max_pvalue, min_magnitude=min_change)
    return [Change(int(p.index), float(p.stats.mean_1), float(p.stats.mean_2), float(p.stats.pvalue)) for p in found]
