"""Which parts of an overlay this version carries out; asking for another part is an error, never ignored."""

from __future__ import annotations

from specpilot_sglang import __version__
from specpilot_sglang.errors import OverlayError
from specpilot_sglang.overlay.loader import LoadedOverlay
from specpilot_sglang.overlay.schema import Overlay

#: Mechanism -> (where the overlay asks for it, the value that means stock behaviour).
_NOT_YET: dict[str, tuple[tuple[str, ...], str]] = {
    "certified-int8-lm-head": (("lm_head", "certified_int8"), "false"),
    "two-level-verify": (("verify", "levels"), "1, without cheap_rounds"),
    "shared-node-budget": (("batching", "shared_node_budget"), "unset"),
    "per-request-block": (("batching", "block_size"), "fixed"),
    "cost-aware-admission": (("batching", "admission"), "stock"),
}


def unsupported(overlay: Overlay) -> list[str]:
    """Return the mechanisms `overlay` asks for that this version does not have."""
    return [name for name in overlay.mechanisms if name in _NOT_YET]


def validate_supported(overlay: Overlay | LoadedOverlay) -> None:
    """Refuse an overlay that asks for a mechanism this version does not have.

    Raises:
        OverlayError: names file:line:key (with a LoadedOverlay), the mechanisms and the value to set.
    """
    plain = overlay.overlay if isinstance(overlay, LoadedOverlay) else overlay
    missing = unsupported(plain)
    if not missing:
        return
    loc, stock = _NOT_YET[missing[0]]
    where = overlay.where(*loc) if isinstance(overlay, LoadedOverlay) else f"{plain.name}:{'.'.join(loc)}"
    what = f"specpilot-sglang {__version__} does not have {', '.join(missing)} yet"
    others = " and likewise for the others" if len(missing) > 1 else ""
    raise OverlayError(what, where=where, fix=f"set {'.'.join(loc)} to {stock}{others}")
