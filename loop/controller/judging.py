"""Trials of one round, on the executor; the verdict is the controller's own, by code that is what it was."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.controller import history, pins
from specpilot_sglang.loop.controller.context import Context
from specpilot_sglang.loop.controller.propose import Slot
from specpilot_sglang.loop.executors import JobStatus
from specpilot_sglang.loop.executors.base import JobSpec
from specpilot_sglang.loop.journal import Job
from specpilot_sglang.loop.judge.verdict import Status
from specpilot_sglang.overlay import LoadedOverlay

_POLL_S = 0.1
_TTL_S = 300.0


def judge_all(context: Context, slots: Sequence[Slot], incumbent: LoadedOverlay) -> list[Job]:
    """Run the trials of this round's candidates one after the other, and return them in the order of their slots.

    Raises:
        ControllerChangedError: before a verdict, the code that decides is found changed.
        SpecPilotError: a trial's infrastructure failed more often than is tried.
    """
    done = []
    for slot in slots:
        gate = context.journal.job(history.gate_key(slot.round, slot.number))
        assert gate is not None
        if gate.result.get("trial"):
            done.append(_trial(context, gate, incumbent))
    return done


def _trial(context: Context, gate: Job, incumbent: LoadedOverlay) -> Job:
    key = str(gate.result["trial"])
    candidate = context.state.candidate(gate.key) / incumbent.overlay.name
    folder = context.state.trial(key)
    spec = {"candidate": str(gate.result["sha256"]), "incumbent": incumbent.sha256, "gate": gate.key}
    context.journal.enqueue(key, "trial", spec)
    payload = {
        "settings": context.settings.model_dump(mode="json"),
        "incumbent": str(incumbent.folder.resolve()),
        "candidate": str(candidate.resolve()),
        "folder": str(folder.resolve()),
        "state": str(context.state.root.resolve()),
    }

    def work(job: Job) -> dict[str, Any]:
        # Counted over all starts of the loop: an executor that outlives the controller remembers former attempts.
        number = 1 + sum(bool(event.data["counted"]) for event in context.journal.events("infra", key))
        attempt = JobSpec(key, number, context.parts.trial_entry, payload, folder.resolve(), context.parts.python_path)
        value = _await(context, attempt, job)
        return _verdict(context, key, folder, value)

    return context.run(key, work, ttl_s=_TTL_S)


def _await(context: Context, attempt: JobSpec, job: Job) -> Mapping[str, Any]:
    """Return what the job left; raise `SpecPilotError` when it was lost or its infrastructure failed."""
    executor, renewed = context.executor, time.monotonic()
    executor.submit(attempt)
    try:
        while (status := executor.poll(attempt)) is JobStatus.RUNNING:
            if time.monotonic() - renewed > _TTL_S / 4:
                context.journal.renew(job, _TTL_S)
                renewed = time.monotonic()
            time.sleep(_POLL_S)
    except BaseException:
        if executor.name == "local":
            executor.cancel(attempt)
        raise
    result = attempt.result() if status is JobStatus.ENDED else None
    executor.cancel(attempt)
    if result is None:
        raise SpecPilotError(f"the trial's process was lost ({status.value})", where=attempt.folder / "job.log")
    if "infra" in result:
        raise SpecPilotError(str(result["infra"]), where=attempt.folder / "job.log")
    return dict(result["value"])


def _verdict(context: Context, key: str, folder: Path, value: Mapping[str, Any]) -> dict[str, Any]:
    begin = context.journal.events("begin")[0]
    pins.check(begin.data["pins"])
    verdict, figures = context.parts.rejudge(folder)
    if verdict.status is Status.INCOMPLETE:  # the trial ran to its end: running it again would find no more
        context.journal.note("incomplete", key, reasons=list(verdict.reasons)[:10])
    if verdict.status.value != value["status"]:
        context.journal.note("disagreement", key, job_says=value["status"], controller_says=verdict.status.value)
    if verdict.cheating:
        context.journal.note("cheat", key, reasons=list(verdict.reasons)[:10], status=verdict.status.value)
    row = {"status": verdict.status.value, "accepted": verdict.accepted, "reasons": list(verdict.reasons)[:20]}
    return {**row, **figures, "seconds": value.get("seconds"), "host": value.get("host", "")}
