"""Compares two overlays key by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specpilot_sglang.overlay.loader import LoadedOverlay
from specpilot_sglang.overlay.schema import Overlay

Change = tuple[str, Any, Any]


def diff(a: Overlay | LoadedOverlay, b: Overlay | LoadedOverlay) -> list[Change]:
    """Return (key path, value in `a`, value in `b`) for every key that differs, defaults included."""
    left, right = _flat(_content(a), ""), _flat(_content(b), "")
    keys = [*left, *(key for key in right if key not in left)]
    return [(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]


def _content(overlay: Overlay | LoadedOverlay) -> dict[str, Any]:
    plain = overlay.overlay if isinstance(overlay, LoadedOverlay) else overlay
    return plain.model_dump(mode="json")


def _flat(value: Any, prefix: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    out: dict[str, Any] = {}
    for key, item in value.items():
        out.update(_flat(item, f"{prefix}.{key}" if prefix else str(key)))
    return out
