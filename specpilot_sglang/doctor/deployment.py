"""Checks which overlay a target and drafter would get on this machine, by the plugin's own rules."""

from __future__ import annotations

from collections.abc import Iterator

from specpilot_sglang.doctor.check import Check, fail, ok, warn
from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.overlay import (
    Deployment,
    OverlayError,
    load_named,
    overlay_folders,
    select_overlay,
    validate_supported,
    why_not,
)
from specpilot_sglang.plugin.checkpoints import Checkpoint, read_checkpoint
from specpilot_sglang.plugin.deployment import describe
from specpilot_sglang.plugin.drafter import check_drafter


def check_library() -> Iterator[Check]:
    """Check that every overlay of the library loads: one broken file stops every automatic choice."""
    try:
        folders, broken = overlay_folders(), False
    except OverlayError as exc:
        yield _failed("overlays", exc)
        return
    for folder in folders:
        try:
            load_named(folder)
        except OverlayError as exc:
            broken = True
            yield _failed(f"overlay {folder.name}", exc)
    if not broken:
        yield ok("overlays", ", ".join(folder.name for folder in folders))


def check_deployment(model: str | None, draft: str | None) -> Iterator[Check]:
    """Check target, drafter and the overlay they get.

    Args:
        model: model folder or hub id, None to skip.
        draft: drafter folder or hub id, or None.
    """
    if model is None:
        if draft is not None:
            yield warn("deployment", "--draft without --model: nothing to match", "add --model")
        return
    try:
        target = read_checkpoint(model, "--model")
        drafter = read_checkpoint(draft, "--draft") if draft else None
    except SpecPilotError as exc:
        yield _failed("models", exc)
        return
    yield from _models(target, drafter)
    yield from _overlay(describe(target, drafter))


def _models(target: Checkpoint, drafter: Checkpoint | None) -> Iterator[Check]:
    yield ok("target", f"{target.architecture} ({target.where})")
    if drafter is None:
        yield warn("drafter", "none given: no speculative decoding", "add --draft")
        return
    try:
        check_drafter(target, drafter)
    except SpecPilotError as exc:
        yield _failed("drafter", exc)
    else:
        yield ok("drafter", f"{drafter.architecture} ({drafter.where}) fits the target")


def _overlay(deployment: Deployment) -> Iterator[Check]:
    try:
        chosen = select_overlay("auto-or-stock", deployment)
    except SpecPilotError as exc:
        yield _failed("overlay", exc)
        return
    if chosen is None:
        what = f"none matches {deployment.target}, {deployment.drafter or 'no drafter'}, {deployment.gpu}"
        yield fail("overlay", what, "name one with --specpilot-overlay, or copy the overlay `template`")
    else:
        try:
            validate_supported(chosen)
        except SpecPilotError as exc:
            yield _failed("overlay", exc)
        else:
            yield ok("overlay", f"{chosen.overlay.name} (sha256 {chosen.sha256[:12]})")
    for folder in overlay_folders():
        other = load_named(folder)
        if chosen is None or other.path != chosen.path:
            reason = why_not(other, deployment) or "fits too, but is less specific"
            yield ok(f"not {other.overlay.name}", reason)


def _failed(name: str, exc: SpecPilotError) -> Check:
    return fail(name, f"{exc.where}: {exc.what}" if exc.where else exc.what, exc.fix)
