"""The judge: decides on recorded evidence whether a candidate is promoted. Agents may not touch it."""

from specpilot_sglang.loop.judge.judging import GATES, judge
from specpilot_sglang.loop.judge.verdict import GateResult, Status, Verdict

__all__ = ["GATES", "GateResult", "Status", "Verdict", "judge"]
