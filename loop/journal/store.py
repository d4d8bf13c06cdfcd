"""The journal's file: append-only events, jobs derived in the same transaction, leases with fencing tokens."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.durable import finite
from specpilot_sglang.eval.ab.hostlock import host_lock
from specpilot_sglang.loop.journal import states
from specpilot_sglang.loop.journal.artifacts import ArtifactStore
from specpilot_sglang.loop.journal.redact import redact
from specpilot_sglang.loop.journal.schema import connect
from specpilot_sglang.loop.journal.states import MOVES, Event, Job, JobState, StaleLeaseError

_JOB = "key, kind, state, token, worker, expires, retries, spec, result"


class Journal:
    """The journal in folder `root`; every method is one transaction, safe between threads and processes.

    Args:
        root: folder for `journal.sqlite` and `artifacts/`.
        now: seconds since the epoch.
    """

    def __init__(self, root: Path, now: Callable[[], float] = time.time) -> None:
        self.path = root / "journal.sqlite"
        self.artifacts = ArtifactStore(root / "artifacts")
        self._db, self._now, self._mutex = connect(self.path), now, threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def note(self, kind: str, job: str = "", token: int = 0, **data: Any) -> int:
        """Append a fact and return its position; raise `ValueError` for a kind that moves jobs."""
        if kind in MOVES:
            raise ValueError(f"{kind} moves a job; use its method")
        with self._writing():
            return self._append(kind, job, token, data).seq

    def enqueue(self, key: str, kind: str, spec: Mapping[str, Any]) -> Job:
        """Queue a job, or return the one that has this key already.

        Raises:
            SpecPilotError: the key stands for other work.
        """
        with self._writing():
            former = self._job(key)
            if former is None:
                return self._move(None, "enqueue", key, 0, {"kind": kind, "spec": dict(spec)})
        if (former.kind, dict(former.spec)) != (kind, _plain(spec)):
            raise SpecPilotError("this key stands for another job", where=key, fix="put all that differs into the key")
        return former

    def lease(self, key: str, worker: str, ttl_s: float) -> Job | None:
        """Lease a job that is queued or whose lease ended; None when somebody holds it or it is finished."""
        with self._writing():
            job = self._job(key)
            late = job is not None and job.state is JobState.LEASED and job.expires <= self._now()
            if job is None or not (job.state is JobState.QUEUED or late):
                return None
            return self._move(job, "lease", key, 0, {"worker": worker, "expires": self._now() + ttl_s})

    def renew(self, job: Job, ttl_s: float) -> Job:
        """Extend a lease; raise `StaleLeaseError` when it is no longer held."""
        return self._under_lease(job, "renew", {"expires": self._now() + ttl_s})

    def finish(self, job: Job, result: Mapping[str, Any]) -> Job:
        """Record the job's result, once; raise `StaleLeaseError` when the lease is no longer held."""
        return self._under_lease(job, "finish", {"result": dict(result)})

    def fail(self, job: Job, result: Mapping[str, Any]) -> Job:
        """Record that the candidate failed by its own fault; raise `StaleLeaseError` as `finish`."""
        return self._under_lease(job, "fail", {"result": dict(result)})

    def infra(self, job: Job, reason: str, *, most: int, counted: bool = True) -> Job:
        """Record an infrastructure failure: queued again, or abandoned after `most` of them.

        Args:
            job: the leased job.
            reason: what happened.
            most: infrastructure failures of one job before it is given up.
            counted: False for a worker that was killed from outside, which says nothing about the job.

        Raises:
            StaleLeaseError: the lease is no longer held.
        """
        abandon = counted and job.retries + 1 >= most
        return self._under_lease(job, "infra", {"reason": reason, "abandon": abandon, "counted": counted})

    def requeue(self, job: Job) -> Job:
        """Queue a job again that was given up; its failures so far no longer count towards giving it up.

        Raises:
            SpecPilotError: it was not given up.
        """
        with self._writing():
            now = self._job(job.key)
            if now is None or now.state is not JobState.ABANDONED:
                raise SpecPilotError("this job was not given up", where=job.key)
            return self._move(now, "requeue", job.key, 0, {})

    def keep(self, content: bytes, name: str) -> str:
        """Keep a file: content first, row second. Return its SHA-256."""
        digest = self.artifacts.put(content)
        with self._writing():
            self._db.execute("INSERT OR IGNORE INTO artifacts VALUES (?, ?, ?)", (digest, len(content), name))
        return digest

    def job(self, key: str) -> Job | None:
        """Return a job, None when there is none of this key."""
        with self._mutex:
            return self._job(key)

    def jobs(self, kind: str | None = None, state: JobState | None = None) -> list[Job]:
        """Return jobs in the order they were queued."""
        wanted = [("kind = ?", kind), ("state = ?", state.value if state else None)]
        used = [(text, value) for text, value in wanted if value is not None]
        where = " WHERE " + " AND ".join(text for text, _ in used) if used else ""
        with self._mutex:
            rows = self._db.execute(f"SELECT {_JOB} FROM jobs{where} ORDER BY rowid", [v for _, v in used]).fetchall()
        return [_job_of(row) for row in rows]

    def events(self, kind: str | None = None, job: str | None = None, after: int = 0) -> list[Event]:
        """Return events in order, optionally of one kind or job, or after a position."""
        text, values = "SELECT seq, time, kind, job, token, data FROM events WHERE seq > ?", [after]
        extra: list[Any] = []
        for column, value in (("kind", kind), ("job", job)):
            if value is not None:
                text, extra = f"{text} AND {column} = ?", [*extra, value]
        with self._mutex:
            rows = self._db.execute(f"{text} ORDER BY seq", [*values, *extra]).fetchall()
        return [_event_of(row) for row in rows]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of jobs by kind and state, without reading them."""
        with self._mutex:
            rows = self._db.execute("SELECT kind, state, COUNT(*) FROM jobs GROUP BY kind, state").fetchall()
        found: dict[str, dict[str, int]] = {}
        for kind, state, count in rows:
            found.setdefault(kind, {})[state] = count
        return found

    def length(self) -> int:
        """Return the position of the last event."""
        with self._mutex:
            return int(self._db.execute("SELECT COALESCE(MAX(seq), 0) FROM events").fetchone()[0])

    def check(self) -> list[str]:
        """Return where the `jobs` table differs from what the events make, and artifacts that are missing."""
        derived, kept = states.fold(self.events()), {job.key: job for job in self.jobs()}
        names = sorted({*derived, *kept})
        wrong = [f"job {key} is not what its events make it" for key in names if derived.get(key) != kept.get(key)]
        with self._mutex:
            digests: Sequence[tuple[str]] = self._db.execute("SELECT sha256 FROM artifacts").fetchall()
        gone = [f"artifact {d} is missing" for (d,) in digests if not self.artifacts.path(d).exists()]
        return [*wrong, *gone]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        # Writers queue up in the kernel, in order: SQLite's own wait polls with growing pauses, so some would starve.
        with self._mutex, host_lock(self.path.with_suffix(".lock")):
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except sqlite3.Error as exc:
                self._rollback()
                fix = "free space, or look for a process that holds the file"
                raise SpecPilotError(f"cannot write the journal ({exc})", where=self.path, fix=fix) from exc
            except BaseException:
                self._rollback()
                raise

    def _rollback(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _under_lease(self, job: Job, kind: str, data: Mapping[str, Any]) -> Job:
        with self._writing():
            now = self._job(job.key)
            if now is None or now.state is not JobState.LEASED or now.token != job.token:
                held = "nobody holds it" if now is None or now.state is not JobState.LEASED else f"{now.worker} does"
                raise StaleLeaseError(f"the lease of this job ended; {held}", where=job.key, fix="drop this result")
            return self._move(now, kind, job.key, job.token, data)

    def _move(self, job: Job | None, kind: str, key: str, token: int, data: Mapping[str, Any]) -> Job:
        after = states.apply(job, self._append(kind, key, token, data))
        row = (after.key, after.kind, after.state.value, after.token, after.worker, after.expires, after.retries)
        values = (*row, json.dumps(after.spec), json.dumps(after.result))
        if job is None:
            self._db.execute(f"INSERT INTO jobs ({_JOB}) VALUES (?,?,?,?,?,?,?,?,?)", values)
        else:
            text = "kind=?, state=?, token=?, worker=?, expires=?, retries=?, spec=?, result=?"
            self._db.execute(f"UPDATE jobs SET {text} WHERE key=?", (*values[1:], after.key))
        return after

    def _append(self, kind: str, job: str, token: int, data: Mapping[str, Any]) -> Event:
        when, plain = self._now(), _plain(data)
        row = (when, kind, job, token, json.dumps(plain))
        cursor = self._db.execute("INSERT INTO events (time, kind, job, token, data) VALUES (?, ?, ?, ?, ?)", row)
        return Event(int(cursor.lastrowid or 0), when, kind, job, token, plain)

    def _job(self, key: str) -> Job | None:
        row = self._db.execute(f"SELECT {_JOB} FROM jobs WHERE key = ?", (key,)).fetchone()
        return _job_of(row) if row else None


def _event_of(row: Sequence[Any]) -> Event:
    seq, when, kind, job, token, data = row
    return Event(seq, when, kind, job, token, json.loads(data))


def _job_of(row: Sequence[Any]) -> Job:
    key, kind, state, token, worker, expires, retries, spec, result = row
    return Job(key, kind, JobState(state), token, worker, expires, retries, json.loads(spec), json.loads(result))


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return what JSON makes of it, without secrets: what is compared must be what is kept."""
    return dict(json.loads(json.dumps(redact(finite(dict(value))), default=str)))
