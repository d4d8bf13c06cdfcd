"""Scores a load's answers item by item."""

from __future__ import annotations

from collections.abc import Sequence

from specpilot_sglang.eval.load.results import Sample
from specpilot_sglang.eval.suites import Item


def score(items: Sequence[Item], samples: Sequence[Sample]) -> dict[str, dict[str, bool]]:
    """Return suite -> item id -> whether the answer is right; a failed request is wrong."""
    raise NotImplementedError
