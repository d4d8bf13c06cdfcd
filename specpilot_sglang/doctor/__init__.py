"""`specpilot doctor`: looks at one machine and says what is missing. Imports neither torch nor SGLang itself."""

from __future__ import annotations

from specpilot_sglang.doctor.check import Check, Probe, Status, run_probes
from specpilot_sglang.doctor.deployment import check_deployment, check_library
from specpilot_sglang.doctor.hardware import check_hardware, has_gpu
from specpilot_sglang.doctor.plugin import check_plugin
from specpilot_sglang.doctor.software import check_software
from specpilot_sglang.doctor.tools import check_tools

__all__ = ["Check", "Status", "examine"]


def examine(model: str | None = None, draft: str | None = None) -> list[Check]:
    """Run every check of this machine, and of a target and drafter when given.

    Args:
        model: model folder or hub id, or None.
        draft: drafter folder or hub id, or None.
    """
    gpu = has_gpu()
    probes: list[Probe] = [
        ("software", check_software),
        ("plugin", lambda: check_plugin(gpu)),
        ("hardware", check_hardware),
        ("tools", lambda: check_tools(gpu)),
        ("overlays", check_library),
        ("deployment", lambda: check_deployment(model, draft)),
    ]
    return run_probes(probes)
