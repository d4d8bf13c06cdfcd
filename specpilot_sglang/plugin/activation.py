"""Activates one overlay in the launching process."""

from __future__ import annotations

import logging
from typing import Any

from specpilot_sglang.overlay import select_overlay, validate_supported
from specpilot_sglang.patching import PatchSet
from specpilot_sglang.plugin import attestation
from specpilot_sglang.plugin.active import Active, overlay_mode, stock_mode
from specpilot_sglang.plugin.arguments import fill, planned_arguments
from specpilot_sglang.plugin.deployment import describe, read_models, refuse_unsupported
from specpilot_sglang.plugin.drafter import check_drafter
from specpilot_sglang.plugin.launcher import check_version, installed_sglang_version
from specpilot_sglang.plugin.mechanisms import install_mechanisms
from specpilot_sglang.plugin.request import Request

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
    asked_for = request.overlay or "auto"
    if loaded is None:
        active = stock_mode(asked_for)
        logger.warning("specpilot: no overlay matches this deployment, serving stock (auto-or-stock)")
    else:
        validate_supported(loaded.overlay)
        applied, overridden = fill(server_args, planned_arguments(server_args, loaded, target, drafter))
        active = overlay_mode(
            overlay=loaded.overlay.name,
            path=str(loaded.path),
            sha256=loaded.sha256,
            request=asked_for,
            algorithm=server_args.speculative_algorithm,
            server_args=applied,
            overridden=overridden,
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
    if not active.stock:
        patches += install_mechanisms(active)
    applied = PatchSet(patches, installed_sglang_version()).apply()
    attestation.start(active, applied)
