"""Gates: did the candidate really run, every rank of it, on the hot path, in plausible amounts?"""

from __future__ import annotations

from typing import Any

from specpilot_sglang.eval.ab.block import Block
from specpilot_sglang.eval.load.results import LoadResult
from specpilot_sglang.loop.judge.evidence import Evidence
from specpilot_sglang.loop.judge.verdict import GateResult, Status, found

#: The plugin's counter of scheduler steps through the draft-and-verify worker, prefills included.
STEPS = "speculative_steps"
#: Share, and steps a request, by which the plugin's count may exceed what SGLang's own figures explain: prefills
#: in chunks, and the step that the overlap scheduler has begun when a request ends.
_SLACK, _SLACK_PER_REQUEST = 0.1, 4


def attestation_gate(evidence: Evidence) -> list[GateResult]:
    """Every block's candidate attests the frozen overlay on all ranks, before and after its load."""
    if not evidence.frozen.candidate.plugin:
        return [found("attestation", Status.NOT_RUN, [], "the candidate is no overlay")]
    reasons = [reason for block in evidence.blocks for reason in _attested(block, evidence)]
    if not evidence.blocks and not evidence.failures:
        reasons.append("no block was run")
    return [found("attestation", Status.NOT_RUN, reasons, f"{len(evidence.blocks)} blocks attested")]


def hot_path_gate(evidence: Evidence) -> list[GateResult]:
    """The hot-path counters grew in each load by what the server's own verify steps and tokens explain."""
    if not evidence.frozen.candidate.plugin:
        return [found("hot path", Status.NOT_RUN, [], "the candidate is no overlay")]
    reasons = []
    for block in evidence.blocks:
        reasons += [f"block {block.index}: {r}" for r in counted(block.loads[evidence.candidate])]
    return [found("hot path", Status.NOT_RUN, reasons, "counters grew with the tokens that were emitted")]


def steps_gate(evidence: Evidence) -> list[GateResult]:
    """Neither arm emits more tokens than its verify steps can: what never passed the target was not decoded."""
    reasons = []
    for block in evidence.blocks:
        for name, load in block.loads.items():
            reasons += [f"block {block.index}, {name}: {reason}" for reason in too_many_tokens(load)]
    return [found("verify steps", Status.CACHED, reasons, "every token fits into a verify step")]


def counted(load: LoadResult) -> list[str]:
    """Return why the candidate's counters cannot belong to this load; empty when they can."""
    before = [_hits(said) for said in _ranks(load.attestation_before)]
    reasons = []
    for rank, said in enumerate(_ranks(load.attestation_after)):
        hits, must = _hits(said), _must_grow(said)
        grown = {n: count - (before[rank].get(n, 0) if rank < len(before) else 0) for n, count in hits.items()}
        if not must:
            reasons.append(f"rank {rank} counts nothing")
        idle = [name for name in must if grown.get(name, 0) <= 0]
        reasons += [f"rank {rank}: {name} did not grow: it never ran" for name in idle]
        if grown.get(STEPS, 0) > 0:
            reasons += [f"rank {rank}: {reason}" for reason in _implausible(grown[STEPS], load)]
    return reasons


def _implausible(steps: int, load: LoadResult) -> list[str]:
    requests, tokens, block = len(load.good), load.output_tokens, block_size(load)
    least = (tokens - requests) / (block * load.concurrency) if block else 0.0
    most = (1 + _SLACK) * ((load.verify_steps or tokens) + _SLACK_PER_REQUEST * requests)
    if steps < least:
        return [f"{steps} steps cannot have emitted {tokens} tokens ({load.concurrency} at a time, blocks of {block})"]
    if steps > most:
        return [f"{steps} steps counted, the server's own verify steps explain {most:.0f} at most"]
    return []


def too_many_tokens(load: LoadResult) -> list[str]:
    """Return why the tokens cannot have come from the server's verify steps; empty when they can, or without any."""
    block, steps = block_size(load), load.verify_steps
    if not block:
        return []
    if not steps:
        return ["a speculative server reports no verify step; it counts each one with --enable-metrics only"]
    decoded = load.output_tokens - len(load.good)  # each request's first token comes from its prefill
    if decoded > steps * block:
        return [f"{decoded} tokens decoded in {steps} verify steps of at most {block}"]
    return []


def block_size(load: LoadResult) -> int:
    """Return the tokens a verify step can emit at most; 0 without speculative decoding."""
    info = load.server_after
    return int(info.get("speculative_num_draft_tokens") or 0) if info.get("speculative_algorithm") else 0


def _attested(block: Block, evidence: Evidence) -> list[str]:
    load, wanted = block.loads[evidence.candidate], evidence.frozen.overlay_sha256
    reasons = []
    for when, attestation in (("before", load.attestation_before), ("after", load.attestation_after)):
        place = f"block {block.index}, {when} the load"
        if not attestation:
            reasons.append(f"{place}: no attestation: the server may be stock")
            continue
        overlay = attestation.get("overlay") or {}
        if attestation.get("mode") != "overlay":
            reasons.append(f"{place}: the plugin runs in mode {attestation.get('mode')!r}, not with an overlay")
        elif wanted and overlay.get("sha256") != wanted:
            reasons.append(f"{place}: another overlay is attested than the frozen one")
        if attestation.get("consistent") is not True:
            reasons.append(f"{place}: the ranks attest different things")
        if not attestation.get("ranks"):
            reasons.append(f"{place}: no rank attests")
    return reasons


def _ranks(attestation: dict[str, Any] | None) -> list[dict[str, Any]]:
    return (attestation or {}).get("ranks") or [{}]


def _must_grow(rank: dict[str, Any]) -> list[str]:
    """Return the counters of a rank that every load must make grow; all of them where it does not say which."""
    hits = _hits(rank).keys()
    return sorted(set(map(str, rank.get("proofs", hits))) | (hits & {STEPS}))


def _hits(rank: dict[str, Any]) -> dict[str, int]:
    return {str(k): int(v) for k, v in (rank.get("hits") or {}).items()}
