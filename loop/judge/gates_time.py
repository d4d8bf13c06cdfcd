"""Gates: are the times true, the caches empty, and the prompts new?"""

from __future__ import annotations

from specpilot_sglang.eval.ab.block import Block
from specpilot_sglang.eval.ab.bounds import mean_and_error, quantile_t
from specpilot_sglang.loop.judge.evidence import Evidence
from specpilot_sglang.loop.judge.verdict import GateResult, Status, failed, found

#: Share of the timed window, and seconds, that a candidate's untimed part may be longer than the incumbent's.
_OUTSIDE_SHARE, _OUTSIDE_S = 0.05, 1.0
_ALPHA = 0.01
#: A repeated probe that takes less than this share of its first time was not decoded again.
_REPEAT = 0.3


def window_gate(evidence: Evidence) -> list[GateResult]:
    """The candidate does not spend more time outside the timed window than the incumbent: work has not moved there."""
    reasons = []
    extra = [_outside(block, evidence.candidate) - _outside(block, evidence.incumbent) for block in evidence.blocks]
    if extra:
        window = sum(b.loads[evidence.candidate].duration_s for b in evidence.blocks) / len(evidence.blocks)
        allowed = max(_OUTSIDE_S, _OUTSIDE_SHARE * window)
        mean, error = mean_and_error(extra)
        # One block shows gross cases only: chance may treble the incumbent's own time. More blocks tell chance apart.
        usual = _outside(evidence.blocks[0], evidence.incumbent)
        chance = 2 * (allowed + usual) if len(extra) < 2 else quantile_t(_ALPHA, len(extra) - 1) * error
        if mean > allowed + chance:
            what = f"{mean:.1f} s more outside the timed window than the incumbent"
            reasons.append(f"{what}, {allowed:.1f} s are allowed: work was moved out of it")
    return [found("window", Status.CLOCK, reasons, "as much time outside the timed window as the incumbent")]


def caches_gate(evidence: Evidence) -> list[GateResult]:
    """The probes after each load: an emptied cache is empty, and repeated prompts are decoded again."""
    reasons, seen = [], 0
    for block in evidence.blocks:
        row = block.runs[evidence.candidate].extra.get("probes")
        if not row:
            continue
        seen += 1
        place = f"block {block.index}"
        if row["cached_again"] > 0:
            reasons.append(f"{place}: {row['cached_again']} prompt tokens came from a cache that was emptied")
        if row["cached_first"] > 0:
            reasons.append(f"{place}: {row['cached_first']} tokens of a prompt never sent before came from a cache")
        if row["repeat_share"] < _REPEAT:
            times = f"{row['repeat_share']:.0%} of its first {row['first_s']:.3f} s although the cache was emptied"
            reasons.append(f"{place}: a repeated prompt took {times}: the answer was kept")
        if row["steps_again"] < 0.5 * row["steps_first"]:
            steps = f"{row['steps_again']} verify steps, {row['steps_first']} the first time"
            reasons.append(f"{place}: repeated prompts took {steps}: the answer was kept")
        if row["tokens"] <= 1:
            reasons.append(f"{place}: a probe was answered by {row['tokens']} tokens although the end token is ignored")
    if not seen:
        return [failed("caches", Status.INCOMPLETE, ["no probe was run on the candidate"])]
    return [found("caches", Status.CACHED, reasons, f"{seen} servers probed")]


def prompts_gate(evidence: Evidence) -> list[GateResult]:
    """No prompt comes twice, both arms got the same ones, and sealed ones are those drawn after the freezing."""
    reasons, seen = [], dict[str, str]()
    for where, blocks in (("selection", evidence.selection), ("confirmation", evidence.confirmation)):
        for block in blocks:
            place = f"{where} block {block.index}"
            ids = [[s.id for s in block.loads[name].samples] for name in block.runs]
            if any(row != list(block.items) for row in ids):
                reasons.append(f"{place}: the arms were not asked the prompts that the block names")
            for item in block.items:
                public = item.removeprefix("sealed/")
                if public in seen:
                    reasons.append(f"{place}: {item} was asked before, in {seen[public]}")
                seen[public] = place
    return [found("prompts", Status.STALE_PROMPTS, [*reasons[:5], *_sealed(evidence)], f"{len(seen)} new prompts")]


def _sealed(evidence: Evidence) -> list[str]:
    if not evidence.confirmation:
        return []
    sealed, frozen = evidence.sealed, evidence.frozen
    if sealed is None:
        return ["the confirmation did not use sealed prompts"]
    reasons = []
    if sealed.frozen_sha256 != frozen.sha256 or sealed.drawn_at < frozen.frozen_at:
        reasons.append("the sealed prompts were not drawn for this candidate after it was frozen")
    for block in evidence.confirmation:
        if list(block.items) != [item.id for item in sealed.block(block.index)]:
            reasons.append(f"confirmation block {block.index} used other prompts than the sealed ones")
        if block.began < sealed.drawn_at:
            reasons.append(f"confirmation block {block.index} began before the sealed prompts were drawn")
    return reasons


def _outside(block: Block, name: str) -> float:
    """Return the seconds of a run, by our clock, in which the benchmark client did not live: warm-up and flush."""
    client = block.loads[name].environment.get("client") or {}
    return block.runs[name].outside_s - float(client.get("wall_s") or block.loads[name].duration_s)
