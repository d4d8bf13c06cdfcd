"""Prompts and workload of the judge's toy trials."""

from __future__ import annotations

from specpilot_sglang.eval.load.run import Workload
from specpilot_sglang.eval.suites import Item

POOL = tuple(
    Item(f"toy/{n:03d}", "toy", f"A shop sells {n * 3 + 20} apples on day {n}. How many are left?") for n in range(200)
)
WORKLOAD = Workload((), 24, 2)
