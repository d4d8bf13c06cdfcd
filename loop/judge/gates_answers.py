"""Gates: are the answers those of the target, whole, and all there?"""

from __future__ import annotations

import math

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.block import Block
from specpilot_sglang.eval.ab.bounds import mean_and_error, quantile_t
from specpilot_sglang.eval.forcing_verdict import MAX_EXCESS, compare
from specpilot_sglang.loop.judge.evidence import Evidence
from specpilot_sglang.loop.judge.verdict import GateResult, Status, failed, found, passed

#: Share by which answers may be shorter in all before they are looked at more closely.
_SHORTER = 0.02
#: One-sided error probability of calling an honest candidate's answers shorter.
_ALPHA = 0.01


def forcing_gate(evidence: Evidence) -> list[GateResult]:
    """Token forcing on sealed prompts: the mismatch rate exceeds the incumbent's by at most 0.5 points."""
    reports = [evidence.forcing.get(name) for name in (evidence.incumbent, evidence.candidate)]
    if reports[0] is None or reports[1] is None:
        return [failed("token forcing", Status.INCOMPLETE, ["tokens were not forced yet"])]
    try:
        verdict = compare(reports[0], reports[1], dtype=evidence.dtype)
    except SpecPilotError as exc:
        return [failed("token forcing", Status.INCOMPLETE, [exc.line()])]
    if verdict.accepted:
        return [passed("token forcing", verdict.reason)]
    # Too few positions is no proof of wrong answers, but nothing is promoted on it either.
    few = not verdict.beyond_tie and verdict.positions > 0 and verdict.excess <= verdict.max_excess
    few = few and not reports[1].failed
    return [failed("token forcing", Status.INCOMPLETE if few else Status.WRONG_ANSWERS, [verdict.reason])]


def timed_gate(evidence: Evidence) -> list[GateResult]:
    """The timed answers themselves are the target's: clearly wrong tokens are no more frequent than the incumbent's."""
    scores = [evidence.timed.get(name) for name in (evidence.incumbent, evidence.candidate)]
    theirs, mine = scores
    if theirs is None or mine is None or not theirs.positions or not mine.positions:
        return [failed("timed answers", Status.INCOMPLETE, ["the timed answers were not scored yet"])]
    error = math.sqrt(sum(s.rate * (1 - s.rate) / s.positions for s in (theirs, mine)))
    figures = (
        f"{mine.clear} of {mine.positions} tokens clearly wrong, the incumbent's {theirs.clear} of {theirs.positions}"
    )
    wrong = [figures] if mine.rate - theirs.rate > MAX_EXCESS + 2 * error else []
    return [found("timed answers", Status.WRONG_ANSWERS, wrong, figures)]


def lengths_gate(evidence: Evidence) -> list[GateResult]:
    """The candidate's answers are as long as the incumbent's, request by request, and end the same way."""
    pairs = [pair for block in evidence.blocks for pair in _pairs(block, evidence)]
    if not pairs:
        return [failed("lengths", Status.INCOMPLETE, ["no request was answered by both arms"])]
    totals = sum(mine for _, mine in pairs), sum(theirs for theirs, _ in pairs)
    shares = [math.log((mine + 1) / (theirs + 1)) for theirs, mine in pairs]
    mean, error = mean_and_error(shares)
    few = len(pairs) < 2
    upper = mean if few or error == 0 else mean + quantile_t(_ALPHA, len(pairs) - 1) * error
    longest = [max((theirs for theirs, _ in pairs), default=0), max((mine for _, mine in pairs), default=0)]
    reasons = []
    if totals[0] < (1 - _SHORTER) * totals[1] and upper < 0:
        reasons.append(f"{len(pairs)} answers hold {totals[0]} tokens, the incumbent's {totals[1]}: they end early")
    full = [sum(theirs == longest[0] for theirs, _ in pairs), sum(mine == longest[0] for _, mine in pairs)]
    if full[0] >= 4 and longest[1] < longest[0]:
        reasons.append(f"{full[0]} answers of the incumbent reach {longest[0]} tokens, none of the candidate's")
    return [found("lengths", Status.SHORTER_ANSWERS, reasons, f"{totals[0]} tokens against {totals[1]}")]


def errors_gate(evidence: Evidence) -> list[GateResult]:
    """The candidate fails no request that the incumbent answers."""
    reasons = []
    for block in evidence.blocks:
        theirs = {s.id for s in block.loads[evidence.incumbent].samples if s.error}
        for sample in block.loads[evidence.candidate].samples:
            if sample.error and sample.id not in theirs:
                reasons.append(f"block {block.index}, {sample.id}: {sample.error}")
    return [found("errors", Status.FAILED, reasons[:5], "no request failed")]


def _pairs(block: Block, evidence: Evidence) -> list[tuple[int, int]]:
    """Return (incumbent's, candidate's) output tokens of each request that both answered."""
    theirs = {s.id: s.output_tokens for s in block.loads[evidence.incumbent].good}
    mine = block.loads[evidence.candidate].good
    return [(theirs[s.id], s.output_tokens) for s in mine if s.id in theirs]
