"""Step times between and beyond the measured batches and widths: a fixed part, one a request, one a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specpilot_sglang.errors import SpecPilotError


@dataclass(frozen=True)
class Fit:
    """`seconds = fixed + per_request * batch + per_token * batch * width`, no coefficient negative.

    Attributes:
        fixed: seconds a pass costs however small, above all reading the weights.
        per_request: seconds a request.
        per_token: seconds a token.
        worst: largest relative error at a measured point.
    """

    fixed: float
    per_request: float
    per_token: float
    worst: float

    def at(self, batch: float, width: float) -> float:
        """Return the seconds of a pass over `batch` requests of `width` tokens."""
        return self.fixed + self.per_request * batch + self.per_token * batch * width


def fit(points: Sequence[tuple[int, int, float]]) -> Fit:
    """Fit (batch, width, seconds) by least squares of the relative errors, without negative coefficients.

    Raises:
        SpecPilotError: no points, or a time that is not positive.
    """
    from scipy.optimize import nnls

    if not points or min(p[2] for p in points) <= 0:
        raise SpecPilotError("no step times to fit", fix="measure at least one batch size")
    times = np.array([p[2] for p in points])
    columns = np.array([[1.0, b, b * w] for b, w, _ in points]) / times[:, None]
    found, _ = nnls(columns, np.ones(len(points)))
    errors = np.abs(columns @ found - 1.0)
    fixed, per_request, per_token = (float(c) for c in found)
    return Fit(fixed, per_request, per_token, float(errors.max()))
