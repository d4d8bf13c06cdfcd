"""Checks before the first server starts what would otherwise stop the last one, minutes later."""

from __future__ import annotations

from specpilot_sglang.eval.demo.plan import Plan
from specpilot_sglang.overlay import select_overlay, validate_supported
from specpilot_sglang.plugin.checkpoints import read_checkpoint
from specpilot_sglang.plugin.deployment import describe
from specpilot_sglang.plugin.drafter import check_drafter


def check(plan: Plan) -> str:
    """Return the name of the overlay that the plugin will use.

    Raises:
        SpecPilotError: target or drafter is unreadable, they do not fit, or no overlay does.
    """
    target = read_checkpoint(str(plan.model), "--model", None)
    drafter = read_checkpoint(str(plan.draft), "--draft", None)
    check_drafter(target, drafter)
    loaded = select_overlay(plan.overlay, describe(target, drafter))
    if loaded is None:
        return "none (stock)"
    validate_supported(loaded)
    return loaded.overlay.name
