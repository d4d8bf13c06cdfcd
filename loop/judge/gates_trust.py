"""Gates: can the evidence be trusted, and was verification lossless?"""

from __future__ import annotations

import re

from specpilot_sglang.eval.ab.failures import Blame
from specpilot_sglang.eval.load.guards import check_lossless
from specpilot_sglang.eval.load.results import LoadResult
from specpilot_sglang.loop.judge.evidence import Evidence
from specpilot_sglang.loop.judge.verdict import GateResult, Status, failed, found, passed

#: What a refused run or a failed attempt was refused for, by the words of its reason; first match wins.
_KINDS: tuple[tuple[str, Status], ...] = (
    (r"benchmark client was changed|is not in the installed wheel|was replaced", Status.TAMPERED),
    (r"simulat|acceptance is relaxed|configuration was changed while it ran", Status.NOT_LOSSLESS),
    (r"the client (claims|did not print)|a request took|requests took", Status.CLOCK),
    (r"came from a cache", Status.CACHED),
    (r"tokens, its text holds|no text that could be timed|were allowed|prompt tokens, we sent", Status.WRONG_ANSWERS),
)


def kind_of(reason: str) -> Status:
    """Return the status that a refusal's reason stands for; `failed` when it is an ordinary failure."""
    return next((status for pattern, status in _KINDS if re.search(pattern, reason)), Status.FAILED)


def pins_gate(evidence: Evidence) -> list[GateResult]:
    """Judge, benchmark client and candidate are what they were when the candidate was frozen."""
    count = len(evidence.frozen.pins)
    return [found("pins", Status.TAMPERED, evidence.frozen.problems(), f"{count} pinned files unchanged")]


def refusals_gate(evidence: Evidence) -> list[GateResult]:
    """No run of the candidate was refused or failed by its own fault; each kind of reason is a result of its own."""
    reasons = [
        str(reason)
        for failure in evidence.failures
        if failure.get("blame") == Blame.CANDIDATE
        for reason in failure.get("reasons", ())
    ]
    for block in evidence.blocks:
        reasons += map(str, block.loads[evidence.candidate].environment.get("refused") or ())
    if not reasons:
        return [passed("refusals", "no run was refused")]
    kinds: dict[Status, list[str]] = {}
    for reason in dict.fromkeys(reasons):
        kinds.setdefault(kind_of(reason), []).append(reason)
    return [failed("refusals", status, rows) for status, rows in kinds.items()]


def lossless_gate(evidence: Evidence) -> list[GateResult]:
    """Neither arm simulates acceptance or relaxes its thresholds, before or after any load."""
    reasons: dict[str, None] = {}
    for block in evidence.blocks:
        for name, load in block.loads.items():
            reasons |= dict.fromkeys(f"{name}: {reason}" for reason in _lossy(load))
    env = evidence.frozen.candidate.env
    reasons |= dict.fromkeys(f"{evidence.candidate}: {reason}" for reason in check_lossless(env, {}, None))
    return [found("lossless", Status.NOT_LOSSLESS, list(reasons), "acceptance neither simulated nor relaxed")]


def _lossy(load: LoadResult) -> list[str]:
    env = {str(k): str(v) for k, v in (load.environment.get("server_env") or {}).items()}
    before = check_lossless(env, load.server_before, load.attestation_before)
    return [*before, *check_lossless(env, load.server_after, load.attestation_after)]
