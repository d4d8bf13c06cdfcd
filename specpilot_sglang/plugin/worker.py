"""Scheduler, detokenizer and controller processes: repeat the launching process's activation."""

from __future__ import annotations


def activate_worker(decision: str | None) -> None:
    """Apply the overlay that the launching process chose; nothing when it chose none.

    Args:
        decision: value of the environment variable that the launching process set.
    """
    if not decision:
        return
    from specpilot_sglang.plugin.activation import apply
    from specpilot_sglang.plugin.active import from_parent
    from specpilot_sglang.plugin.launcher import check_version

    check_version()
    apply(from_parent(decision))
