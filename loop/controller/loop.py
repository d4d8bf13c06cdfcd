"""The loop: rounds of proposals, gates, trials and promotions; all of it repeatable from the journal after a kill."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from filelock import FileLock, Timeout

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.provenance import gpu_names
from specpilot_sglang.loop.agents.running import jail_label
from specpilot_sglang.loop.controller import history, incumbent, pins
from specpilot_sglang.loop.controller.context import Context
from specpilot_sglang.loop.controller.deployment import cost_table, drafter_block, first_overlay
from specpilot_sglang.loop.controller.judging import judge_all
from specpilot_sglang.loop.controller.promote import promote_best, remember
from specpilot_sglang.loop.controller.propose import Slot, gate_all, propose_all
from specpilot_sglang.loop.directions import Direction, choose
from specpilot_sglang.loop.directions.derive import directions
from specpilot_sglang.loop.directions.space import parameters
from specpilot_sglang.loop.executors.local import end_orphan
from specpilot_sglang.loop.jail.running import end_labelled
from specpilot_sglang.loop.journal import JobState
from specpilot_sglang.overlay import LoadedOverlay, load_overlay


@dataclass(frozen=True)
class Summary:
    """How a loop ended.

    Attributes:
        reason: why no further round began.
        generation: the incumbent's.
        promoted: generations made in all.
        proposals: proposals in all.
        statuses: number of proposals by what became of them.
    """

    reason: str
    generation: int
    promoted: int
    proposals: int
    statuses: dict[str, int]


def run_loop(context: Context) -> Summary:
    """Run or resume the loop until its budget is used up or nothing is left to try.

    Raises:
        SpecPilotError: another controller runs, settings differ from those it began with, or infrastructure failed;
            finished work is kept and a new start goes on.
    """
    with controlling(context):
        _begin(context)
        recover(context)
        while not (reason := _over(context)):
            _round(context, _next_round(context))
        if not any(event.data["reason"] == reason for event in context.journal.events("finished")[-1:]):
            context.journal.note("finished", reason=reason)
        return summary(context, reason)


@contextmanager
def controlling(context: Context) -> Iterator[None]:
    """Be the one controller of this loop inside the block; its executor is closed at the end."""
    context.state.root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(context.state.lock, timeout=0)
    try:
        lock.acquire()
    except Timeout as exc:
        raise SpecPilotError("another controller runs this loop", where=context.state.root, fix="wait for it") from exc
    try:
        yield
    finally:
        context.executor.close()
        lock.release()


def recover(context: Context) -> None:
    """Take over from a controller that was killed or gave up: end its leases and processes, publish the incumbent."""
    for job in context.journal.jobs(state=JobState.LEASED):
        ended = end_labelled(jail_label(context.state.agent(job.key))) if job.kind == "propose" else []
        if job.kind == "trial" and context.executor.name == "local":
            ended = end_orphan(context.state.trial(job.key).resolve())
        if ended:
            context.journal.note("orphans_ended", job.key, pids=ended)
        context.journal.infra(job, "the controller was killed", most=context.settings.infra_retries, counted=False)
    for job in context.journal.jobs(state=JobState.ABANDONED):  # whoever starts again has repaired what was wrong
        context.journal.requeue(job)
    incumbent.publish(context.state, history.generation(context.journal))


def current(context: Context) -> LoadedOverlay:
    """Return the incumbent."""
    return incumbent.load_generation(context.state, history.generation(context.journal))


def summary(context: Context, reason: str) -> Summary:
    """Return how things stand."""
    statuses: dict[str, int] = {}
    for row in history.slots(context.journal):
        what = history.status(row)
        statuses[what] = statuses.get(what, 0) + 1
    made = len(context.journal.events("promoted"))
    return Summary(reason, history.generation(context.journal), made, sum(statuses.values()), statuses)


def _begin(context: Context) -> None:
    """Write down what the loop is, once; refuse to go on as another one."""
    settings: dict[str, Any] = context.settings.model_dump(mode="json")
    former = context.journal.events("begin")
    if former:
        then = former[0].data["settings"]
        # More candidates, time or money is the same loop going on.
        free = {"candidates", "wall_s", "usd", "infra_retries", "agents"}
        differ = sorted(k for k in {*then, *settings} - free if then.get(k) != settings.get(k))
        if differ:
            fix = "choose another --state, or repeat the former settings"
            raise SpecPilotError(f"the folder holds another loop: {', '.join(differ)} differ", fix=fix)
        pins.check(former[0].data["pins"])
        return
    loaded = load_overlay(first_overlay(context.settings))
    incumbent.make_generation(context.state, 0, loaded.folder, None)
    context.journal.note("begin", settings=settings, generation=0, overlay=loaded.overlay.name, pins=pins.take())


def _round(context: Context, number: int) -> None:
    base = _base(context, number)
    slots = _slots(context, number, base)
    context.watch("round", number=number, slots=slots)
    propose_all(context, slots, base)
    gate_all(context, slots, base)
    trials = judge_all(context, slots, base)
    promote_best(context, number, trials, base)
    remember(context, slots, base)
    context.journal.note("round_done", round=number)


def _base(context: Context, number: int) -> LoadedOverlay:
    """Return the incumbent that the round began with: a promotion inside of it must not change it after a kill."""
    started = [e for e in context.journal.events("round") if e.data["round"] == number]
    made = int(started[0].data["generation"]) if started else history.generation(context.journal)
    return incumbent.load_generation(context.state, made)


def _slots(context: Context, number: int, base: LoadedOverlay) -> list[Slot]:
    """Return who is sent where in a round; decided once and written down."""
    started = [e for e in context.journal.events("round") if e.data["round"] == number]
    if not started:
        chosen = _choose(context, number, base)
        rows = [direction.to_json() for direction in chosen]
        context.journal.note("round", round=number, generation=history.generation(context.journal), directions=rows)
    else:
        chosen = [Direction.model_validate(row) for row in started[0].data["directions"]]
    return [Slot(number, place, direction) for place, direction in enumerate(chosen)]


def _choose(context: Context, number: int, base: LoadedOverlay) -> list[Direction]:
    settings, table = context.settings, cost_table(context.settings)
    found = parameters(base.overlay, block=drafter_block(settings), gpu=bool(gpu_names()), table=table)
    known = directions(found, table, code=settings.agent.preset != "tuner")
    if settings.agent.preset != "tuner":
        known += history.explored(context.journal, number)
    left = settings.candidates - len(context.journal.jobs("propose"))
    return choose(known, history.records(context.journal, number), min(settings.agents, left))


def _next_round(context: Context) -> int:
    started = [int(e.data["round"]) for e in context.journal.events("round")]
    done = {int(e.data["round"]) for e in context.journal.events("round_done")}
    return next((n for n in started if n not in done), len(started))


def _over(context: Context) -> str:
    """Return why no further round begins; empty while one does. A round that began is always brought to its end."""
    settings, number = context.settings, _next_round(context)
    if any(int(e.data["round"]) == number for e in context.journal.events("round")):
        return ""
    jobs = context.journal.jobs("propose")
    if len(jobs) >= settings.candidates:
        return f"{len(jobs)} candidates were proposed"
    begun = context.journal.events("begin")[0].time
    if settings.wall_s is not None and time.time() - begun > settings.wall_s:
        return "the time is used up"
    spent = sum(float(job.result.get("usd") or 0.0) for job in jobs)
    if settings.usd is not None and spent >= settings.usd:
        return f"{spent:.2f} USD were spent"
    return "" if _choose(context, number, current(context)) else "no direction is left"
