"""Replays a loop: every verdict made again from its evidence, every derived row from its events, every signature."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.controller import history, incumbent
from specpilot_sglang.loop.controller.context import Parts
from specpilot_sglang.loop.controller.state import State
from specpilot_sglang.loop.journal import JobState, Journal


@dataclass(frozen=True)
class Replayed:
    """One thing that was checked again; `problem` is empty when it came out the same."""

    what: str
    problem: str = ""


def replay(state: State, journal: Journal, parts: Parts | None = None) -> Iterator[Replayed]:
    """Yield what was checked: the journal itself, each trial's verdict, each generation's signature and files."""
    used = parts or Parts()
    damaged = journal.check()
    yield Replayed(f"journal, {journal.length()} events", "; ".join(damaged))
    for job in journal.jobs("trial", JobState.DONE):
        try:
            verdict, figures = used.rejudge(state.trial(job.key))
        except SpecPilotError as exc:
            yield Replayed(job.key, exc.line())
            continue
        now, then = (verdict.status.value, figures["lower"]), (job.result["status"], job.result["lower"])
        yield Replayed(job.key, "" if now == then else f"it was {then}, it is {now}")
    for number in range(1, history.newest(journal) + 1):
        folder = incumbent.load_generation(state, number).folder
        yield Replayed(f"generation {number}", "; ".join(incumbent.problems(state, folder)))
