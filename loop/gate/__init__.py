"""The patch gate: what an agent hands in is one patch, and only what is on a list gets through."""

from specpilot_sglang.loop.gate.check import GateReport, check_patch

__all__ = ["GateReport", "check_patch"]
