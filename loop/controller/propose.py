"""Proposals of one round: agents side by side, each in its direction, and the gate on what they leave."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.agents.running import Outcome
from specpilot_sglang.loop.agents.task import make_task
from specpilot_sglang.loop.controller import history
from specpilot_sglang.loop.controller.context import Context
from specpilot_sglang.loop.directions import Direction, Parameter
from specpilot_sglang.loop.directions.space import value_of
from specpilot_sglang.loop.gate import check_patch
from specpilot_sglang.loop.gate.feedback import clean, read_note
from specpilot_sglang.loop.journal import Job
from specpilot_sglang.overlay import LoadedOverlay, load_overlay

_MEMORIES, _HISTORY = 8, 40


@dataclass(frozen=True)
class Slot:
    """One agent's place in a round."""

    round: int
    number: int
    direction: Direction


def propose_all(context: Context, slots: Sequence[Slot], incumbent: LoadedOverlay) -> None:
    """Run the agents that have not finished yet, side by side; every result is in the journal at the end.

    Raises:
        SpecPilotError: an agent's infrastructure failed more often than is tried.
    """
    with ThreadPoolExecutor(max_workers=max(1, len(slots))) as pool:
        for future in [pool.submit(_propose, context, slot, incumbent) for slot in slots]:
            future.result()


def gate_all(context: Context, slots: Sequence[Slot], incumbent: LoadedOverlay) -> None:
    """Pass what the agents left through the gate, in the order of their slots."""
    for slot in slots:
        _gate(context, slot, incumbent)


def _propose(context: Context, slot: Slot, incumbent: LoadedOverlay) -> Job:
    key = history.propose_key(slot.round, slot.number)
    spec = {"round": slot.round, "slot": slot.number, "direction": slot.direction.name, "incumbent": incumbent.sha256}
    context.journal.enqueue(key, "propose", spec)
    task = _task(context, slot, incumbent)

    def work(job: Job) -> dict[str, Any]:
        outcome = context.parts.agent(context.settings.agent, task, incumbent, context.state.agent(key))
        # An agent can kill itself as well, so the last try is taken as it is: it must not end the whole loop.
        if outcome.result.ended == "killed" and job.retries + 1 < context.settings.infra_retries:
            raise SpecPilotError("the agent was killed", where=key)
        shutil.rmtree(context.state.agent(key), ignore_errors=True)
        return _proposal(context, key, outcome)

    return context.run(key, work, ttl_s=context.settings.agent.limits.wall_s + 120.0)


def _proposal(context: Context, key: str, outcome: Outcome) -> dict[str, Any]:
    result = outcome.result
    note, refused = read_note(result.note)
    if refused:
        context.journal.note("note_refused", key, reason=refused)
    texts = {"patch": result.patch, "log": result.log}
    kept = {n: context.journal.keep(t.encode("utf-8", "surrogatepass"), f"{key}.{n}") for n, t in texts.items()}
    facts = outcome.facts()
    return {**kept, "note": note, "direction": _explored(result.note), **facts, "seconds": facts["wall_s"]}


def _task(context: Context, slot: Slot, incumbent: LoadedOverlay) -> Any:
    settings, direction, name = context.settings, slot.direction, incumbent.overlay.name
    seed = hashlib.sha256(f"{settings.seed}:{slot.round}:{slot.number}".encode()).digest()
    words = f"{direction.name} {direction.why}"
    return make_task(
        name,
        direction,
        values(incumbent, direction.parameters, incumbent),
        cost=context.cost_rows(),
        memory=context.memory.search(words, name, _MEMORIES) if settings.memory else [],
        history=history.for_agents(context.journal, slot.round)[-_HISTORY:],
        budget={**settings.agent.limits.model_dump(), **settings.agent.caps.model_dump()},
        seed=int.from_bytes(seed[:4], "big"),
    )


def _gate(context: Context, slot: Slot, incumbent: LoadedOverlay) -> Job:
    key = history.gate_key(slot.round, slot.number)
    proposal = context.journal.job(history.propose_key(slot.round, slot.number))
    assert proposal is not None
    spec = {"round": slot.round, "slot": slot.number, "patch": proposal.result.get("patch", "")}
    context.journal.enqueue(key, "gate", spec)

    def work(job: Job) -> dict[str, Any]:
        digest = str(job.spec["patch"])
        patch = context.journal.artifacts.get(digest).decode("utf-8", "surrogatepass") if digest else ""
        empty: Mapping[str, Any] = {"patched": bool(patch), "reasons": [], "values": {}, "sha256": "", "trial": ""}
        if not patch:
            return {**empty, "reasons": [f"no patch ({proposal.result.get('ended', proposal.state.value)})"]}
        report = check_patch(patch, incumbent, context.state.candidate(key))
        if not report.ok or report.folder is None:
            context.journal.note("gate_refused", key, reasons=list(report.reasons))
            return {**empty, "reasons": list(report.reasons)}
        chosen = values(load_overlay(str(report.folder)), slot.direction.parameters, incumbent)
        trial = trial_key(report.sha256, incumbent.sha256, context)
        if any(job.result.get("trial") == trial for job in context.journal.jobs("gate")):
            return {**empty, "reasons": ["this candidate was tried before"], "values": chosen, "sha256": report.sha256}
        return {**empty, "values": chosen, "sha256": report.sha256, "trial": trial, "touched": list(report.touched)}

    return context.run(key, work, ttl_s=600.0)


def trial_key(candidate: str, incumbent: str, context: Context) -> str:
    """Return the key of a trial: the same candidate against the same incumbent under the same load is one trial."""
    asked = [context.settings.load.model_dump(), context.settings.rule.model_dump(), context.settings.dtype]
    text = json.dumps([candidate, incumbent, asked, context.settings.server_args], sort_keys=True)
    return f"trial:{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def values(overlay: LoadedOverlay, parameters: Sequence[Parameter], base: LoadedOverlay) -> dict[str, Any]:
    """Return an overlay's values of a direction's parameters."""
    return {p.key: value_of(overlay.overlay, p.key, base.overlay) for p in parameters}


def _explored(note: str) -> dict[str, Any] | None:
    """Return a new direction that an agent proposes in its note's `next_direction`, None when it does not."""
    try:
        row = json.loads(note)["next_direction"]
        name = re.sub(r"[^a-z0-9-]+", "-", str(row["name"]).lower()).strip("-")[:30]
        why, refused = read_note(json.dumps({"hypothesis": row["why"]}))
        share = min(0.5, max(0.0, float(row.get("share", 0.1))))
        if refused or not name:
            return None
        found = Direction(name=f"x-{name}", share=share, why=clean(str(why["hypothesis"]), 300), source="explorer")
        return found.to_json()
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
