"""Memory: what was tried, what came of it and why, for agents to read; only the controller writes."""

from specpilot_sglang.loop.memory.entry import Entry
from specpilot_sglang.loop.memory.store import Memory

__all__ = ["Entry", "Memory"]
