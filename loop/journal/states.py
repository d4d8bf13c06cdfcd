"""States of a job, and the one function that derives them from events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from specpilot_sglang.errors import SpecPilotError


class JobState(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"  # it has a result; what the result says is another matter
    FAILED = "failed"  # by the candidate's own fault; never tried again
    ABANDONED = "abandoned"  # the infrastructure failed more often than is tried; queued again by the next start


class StaleLeaseError(SpecPilotError):
    """A worker whose lease ended tried to change its job; another one may hold it by now."""


@dataclass(frozen=True)
class Event:
    """One row of the journal.

    Attributes:
        seq: position, from 1; a lease's fencing token is the position of its event.
        time: seconds since the epoch.
        kind: what happened; the kinds in `MOVES` move a job, all others are facts for readers.
        job: key of the job it is about; empty for events of the whole loop.
        token: fencing token under which it was written; 0 without a lease.
        data: JSON values.
    """

    seq: int
    time: float
    kind: str
    job: str
    token: int
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A job as its events left it.

    Attributes:
        key: names the work itself, so that asking twice is asking once.
        kind: `propose`, `gate`, `trial`, `promote`.
        state: see `JobState`.
        token: fencing token of the present or last lease.
        worker: who holds or held it.
        expires: seconds since the epoch when the lease ends.
        retries: attempts that failed by the infrastructure's fault; never counted against a candidate.
        spec: what to do.
        result: what came out; empty before the end.
    """

    key: str
    kind: str
    state: JobState = JobState.QUEUED
    token: int = 0
    worker: str = ""
    expires: float = 0.0
    retries: int = 0
    spec: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)


#: Events that move a job.
MOVES = ("enqueue", "lease", "renew", "finish", "fail", "infra", "requeue")


def apply(job: Job | None, event: Event) -> Job:
    """Return the job after one of its events; events of other kinds do not reach here."""
    data = event.data
    if job is None:
        return Job(event.job, str(data["kind"]), spec=data["spec"])
    if event.kind == "lease":
        return replace(
            job, state=JobState.LEASED, token=event.seq, worker=str(data["worker"]), expires=float(data["expires"])
        )
    if event.kind == "renew":
        return replace(job, expires=float(data["expires"]))
    if event.kind == "finish":
        return replace(job, state=JobState.DONE, result=data["result"])
    if event.kind == "fail":
        return replace(job, state=JobState.FAILED, result=data["result"])
    if event.kind == "requeue":
        return replace(job, state=JobState.QUEUED, retries=0, result={})
    state = JobState.ABANDONED if data["abandon"] else JobState.QUEUED
    return replace(job, state=state, retries=job.retries + int(data["counted"]), result={"reason": data["reason"]})


def fold(events: Iterable[Event]) -> dict[str, Job]:
    """Return every job as its events make it: what the `jobs` table must say."""
    jobs: dict[str, Job] = {}
    for event in events:
        if event.kind in MOVES:
            jobs[event.job] = apply(jobs.get(event.job), event)
    return jobs
