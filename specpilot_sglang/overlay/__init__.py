"""Overlays: the files that describe one deployment's changes; import-light (no torch, no SGLang)."""

from specpilot_sglang.errors import OverlayError
from specpilot_sglang.overlay.difference import diff
from specpilot_sglang.overlay.loader import LoadedOverlay, load_named, load_overlay, overlay_folders
from specpilot_sglang.overlay.match import Deployment, mismatches, select_overlay, why_not
from specpilot_sglang.overlay.problems import InvalidOverlayError, Problem
from specpilot_sglang.overlay.schema import Overlay, overlay_json_schema
from specpilot_sglang.overlay.support import unsupported, validate_supported

__all__ = [
    "Deployment",
    "InvalidOverlayError",
    "LoadedOverlay",
    "Overlay",
    "OverlayError",
    "Problem",
    "diff",
    "load_named",
    "load_overlay",
    "mismatches",
    "overlay_folders",
    "overlay_json_schema",
    "select_overlay",
    "unsupported",
    "validate_supported",
    "why_not",
]
