"""The timing overlay's patches, beside another overlay."""

from __future__ import annotations

from typing import Any


def timings() -> Any:
    """Return the patches of `specpilot_sglang.loop.cost.timings`."""
    from specpilot_sglang.loop.cost.timings import patches

    return patches()
