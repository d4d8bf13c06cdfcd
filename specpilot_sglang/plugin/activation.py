"""Activates one overlay in the launching process."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from specpilot_sglang.overlay import Overlay, select_overlay, validate_supported
from specpilot_sglang.patching import PatchSet
from specpilot_sglang.plugin import attestation
from specpilot_sglang.plugin.active import Active, overlay_mode, stock_mode
from specpilot_sglang.plugin.arguments import fill, planned_arguments, uses_w12
from specpilot_sglang.plugin.deployment import describe, gpu_name, read_models, refuse_unsupported
from specpilot_sglang.plugin.drafter import check_drafter
from specpilot_sglang.plugin.launcher import check_version, installed_sglang_version
from specpilot_sglang.plugin.mechanisms import install_mechanisms, install_w12
from specpilot_sglang.plugin.request import Request
from specpilot_sglang.tree.settings import check_arguments, tree_arguments, tree_settings

logger = logging.getLogger(__name__)


def activate(server_args: Any, request: Request) -> Active:
    """Choose an overlay, fill the server's arguments, apply patches, and tell future workers.

    Args:
        server_args: an unresolved `ServerArgs`; fields the overlay decides are written.
        request: what the user asked for.

    Raises:
        SpecPilotError: anything that keeps the overlay from being applied in full.
    """
    check_version()
    refuse_unsupported(server_args)
    target, drafter = read_models(server_args)
    if drafter is not None:
        check_drafter(target, drafter)
    loaded = select_overlay(request.overlay, describe(target, drafter, server_args.device))
    if loaded is not None:
        validate_supported(loaded)
    overlay = loaded.overlay if loaded else None
    w12 = uses_w12(server_args, overlay, target)
    tree = tree_settings(overlay, target)
    wanted = planned_arguments(server_args, overlay, target, drafter)
    wanted |= tree_arguments(overlay, drafter, gpu_name(server_args.device))
    check_arguments(overlay, server_args)
    filled, overridden = fill(server_args, wanted)
    common = {
        "request": request.overlay or "auto",
        "algorithm": server_args.speculative_algorithm,
        "server_args": filled,
        "overridden": overridden,
        "w12": _w12_settings(overlay) if w12 else None,
        "tree": asdict(tree) if tree else None,
    }
    if loaded is None:
        logger.warning("specpilot: no overlay matches this deployment, serving stock (auto-or-stock)")
        active = stock_mode(**common)
    else:
        active = overlay_mode(
            overlay=loaded.overlay.name, path=str(loaded.path.resolve()), sha256=loaded.sha256, **common
        )
    apply(active)
    active.export()
    logger.info("specpilot: %s", attestation.summary())
    return active


def apply(active: Active) -> None:
    """Apply everything that one process needs; the same call in launcher and workers.

    Raises:
        SpecPilotError: the overlay changed on disk, or a patch does not fit.
    """
    patches = [*attestation.patches(active)]
    patches += install_mechanisms(active)
    applied = [*install_w12(active), *PatchSet(patches, installed_sglang_version()).apply()]
    attestation.start(active, applied)


def _w12_settings(overlay: Overlay | None) -> dict[str, Any]:
    if overlay is None:
        return {"max_bits": None, "exclude": []}
    return {"max_bits": overlay.weights.max_bits, "exclude": list(overlay.weights.exclude)}
