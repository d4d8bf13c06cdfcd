"""Gates: is the candidate faster by the rule, without a worse tail, and is that confirmed on sealed prompts?"""

from __future__ import annotations

from collections.abc import Sequence

from specpilot_sglang.eval.ab.block import Block
from specpilot_sglang.eval.ab.measure import Trial, judge_speed
from specpilot_sglang.eval.ab.rule import Action, Rule, percent
from specpilot_sglang.loop.judge.evidence import Evidence
from specpilot_sglang.loop.judge.verdict import GateResult, Status, failed, passed


def selection_gate(evidence: Evidence) -> list[GateResult]:
    """The blocks on public prompts accept by the rule."""
    return _gate("selection", evidence, evidence.selection, evidence.rule, Status.NO_GAIN)


def confirmation_gate(evidence: Evidence) -> list[GateResult]:
    """Fresh blocks on sealed prompts accept, with one look more; the blocks that selected are never used again."""
    if not evidence.confirmation:
        return [failed("confirmation", Status.INCOMPLETE, ["the gain was not confirmed on sealed prompts yet"])]
    return _gate("confirmation", evidence, evidence.confirmation, evidence.confirming, Status.NOT_CONFIRMED)


def _gate(name: str, evidence: Evidence, blocks: Sequence[Block], rule: Rule, status: Status) -> list[GateResult]:
    if evidence.noise is None:
        return [failed(name, Status.INCOMPLETE, ["the host's noise is unknown: no A/A"])]
    trial = judge_speed(blocks, evidence.incumbent, evidence.candidate, evidence.noise, rule)
    return [_speed(name, trial, status), *_tail(name, trial)]


def _speed(name: str, trial: Trial, status: Status) -> GateResult:
    decision = trial.decision
    figures = (
        f"gain {percent(decision.mean)}, lower bound {percent(decision.lower)}, needed {percent(decision.threshold)}"
    )
    reason = f"{decision.reason} ({figures})"
    if decision.action is Action.ACCEPT:
        return passed(name, reason)
    return failed(name, Status.INCOMPLETE if decision.action is Action.CONTINUE else status, [reason])


def _tail(name: str, trial: Trial) -> list[GateResult]:
    if not trial.blocks:
        return []
    slow = [check.reason for check in trial.latencies if not check.ok]
    if slow:
        return [failed(f"{name} latency", Status.SLOW_TAIL, slow)]
    return [passed(f"{name} latency", *(check.reason for check in trial.latencies))]
