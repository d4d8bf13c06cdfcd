"""The journal: events that stay, leases that fence, files before rows, many writers, kills."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.journal import JobState, Journal, StaleLeaseError


@pytest.fixture
def clock():
    class Clock:
        now = 1000.0

        def __call__(self):
            return self.now

    return Clock()


@pytest.fixture
def journal(tmp_path, clock):
    with Journal(tmp_path, clock) as opened:
        yield opened


def test_a_key_is_queued_once_and_never_for_other_work(journal):
    first = journal.enqueue("trial:1", "trial", {"a": 1})
    assert journal.enqueue("trial:1", "trial", {"a": 1}) == first
    assert len(journal.events("enqueue")) == 1
    with pytest.raises(SpecPilotError, match="another job"):
        journal.enqueue("trial:1", "trial", {"a": 2})


def test_a_late_worker_cannot_write_over_the_one_that_took_over(journal, clock):
    journal.enqueue("t", "trial", {})
    late = journal.lease("t", "first", ttl_s=10)
    assert journal.lease("t", "second", ttl_s=10) is None, "held"
    clock.now += 11
    new = journal.lease("t", "second", ttl_s=10)
    assert new.token > late.token
    with pytest.raises(StaleLeaseError):
        journal.finish(late, {"verdict": "accepted"})
    with pytest.raises(StaleLeaseError):
        journal.renew(late, 10)
    journal.finish(new, {"verdict": "rejected"})
    with pytest.raises(StaleLeaseError):
        journal.finish(new, {"verdict": "accepted"})
    assert journal.job("t").result == {"verdict": "rejected"}
    assert journal.lease("t", "third", ttl_s=10) is None, "finished"


def test_a_renewed_lease_is_not_given_away(journal, clock):
    journal.enqueue("t", "trial", {})
    held = journal.renew(journal.lease("t", "first", ttl_s=10), 100)
    clock.now += 50
    assert journal.lease("t", "second", ttl_s=10) is None
    assert journal.finish(held, {}).state is JobState.DONE


def test_infrastructure_failures_are_counted_apart_and_end_in_abandonment(journal):
    journal.enqueue("t", "trial", {})
    assert journal.infra(journal.lease("t", "w", 10), "host died", most=2).state is JobState.QUEUED
    killed = journal.infra(journal.lease("t", "w", 10), "controller was killed", most=2, counted=False)
    assert (killed.state, killed.retries) == (JobState.QUEUED, 1)
    assert journal.infra(journal.lease("t", "w", 10), "host died", most=2).state is JobState.ABANDONED
    assert [job.key for job in journal.jobs(state=JobState.FAILED)] == []
    again = journal.requeue(journal.job("t"))
    assert (again.state, again.retries, again.result) == (JobState.QUEUED, 0, {})
    assert journal.infra(journal.lease("t", "w", 10), "host died", most=2).state is JobState.QUEUED
    with pytest.raises(SpecPilotError, match="was not given up"):
        journal.requeue(journal.job("t"))
    assert journal.check() == []


def test_events_can_be_neither_changed_nor_deleted(journal):
    journal.note("canary", ratio=1.0)
    for statement in ("UPDATE events SET data='{}'", "DELETE FROM events"):
        with pytest.raises(sqlite3.IntegrityError, match="never"):
            journal._db.execute(statement)
    with pytest.raises(ValueError, match="moves a job"):
        journal.note("finish", "t")


def test_the_jobs_table_is_what_the_events_make(journal):
    for n in range(5):
        journal.enqueue(f"t{n}", "trial", {"n": n})
    journal.finish(journal.lease("t1", "w", 10), {"x": float("nan")})
    journal.fail(journal.lease("t2", "w", 10), {"why": "crashed"})
    journal.infra(journal.lease("t3", "w", 10), "host", most=3)
    assert journal.check() == []
    journal._db.execute("UPDATE jobs SET result='{\"verdict\": \"accepted\"}' WHERE key='t2'")
    assert journal.check() == ["job t2 is not what its events make it"]


def test_artifacts_are_found_changed_or_missing(journal):
    digest = journal.keep(b"patch", "patch.diff")
    assert journal.keep(b"patch", "again") == digest
    assert journal.artifacts.get(digest) == b"patch"
    journal.artifacts.path(digest).write_bytes(b"other")
    with pytest.raises(SpecPilotError, match="was changed"):
        journal.artifacts.get(digest)
    journal.artifacts.path(digest).unlink()
    assert journal.check() == [f"artifact {digest} is missing"]


def test_two_agents_may_keep_the_same_content_at_once(journal):
    with ThreadPoolExecutor(8) as pool:
        for n in range(40):
            content = [b"%d" % n] * 8
            assert len(set(pool.map(journal.artifacts.put, content))) == 1


def test_no_secret_reaches_the_file(journal, tmp_path):
    secret = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz"
    journal.note("agent", env=f"ANTHROPIC_API_KEY={secret}", header=[f"Authorization: Bearer {secret}"])
    journal.enqueue("p", "propose", {"note": f"the key is {secret}"})
    journal.close()
    assert all(secret.encode() not in path.read_bytes() for path in tmp_path.iterdir() if path.is_file())


def test_a_file_of_another_format_is_refused(tmp_path):
    Journal(tmp_path).close()
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.execute("PRAGMA user_version=9")
    with pytest.raises(SpecPilotError, match="format 9"):
        Journal(tmp_path)


WRITER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from specpilot_sglang.loop.journal import Journal
    root, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    with Journal(root) as journal:
        for n in range(count):
            journal.note("step", f"{name}", n=n)
            if n % 50 == 0:
                print(n, flush=True)
    """
)


def _writers(root, count, names="abcd"):
    command = [sys.executable, "-c", WRITER, str(root)]
    return [subprocess.Popen([*command, name, str(count)], stdout=subprocess.PIPE, text=True) for name in names]


def test_four_writers_side_by_side_meet_no_lock_error_and_status_stays_quick(tmp_path):
    count = int(os.environ.get("SPECPILOT_JOURNAL_EVENTS", "300"))
    processes, slowest = _writers(tmp_path, count), 0.0
    with Journal(tmp_path) as reader:
        while any(p.poll() is None for p in processes):
            begin = time.monotonic()
            reader.counts(), reader.length()
            slowest = max(slowest, time.monotonic() - begin)
            time.sleep(0.05)
        assert [p.wait() for p in processes] == [0] * 4
        seen = [(event.job, event.data["n"]) for event in reader.events("step")]
        assert reader.length() == 4 * count
    assert sorted(seen) == [(name, n) for name in "abcd" for n in range(count)]
    assert slowest < 0.2


def test_what_was_written_before_a_kill_is_there_after_it(tmp_path):
    for _ in range(3):
        (writer,) = _writers(tmp_path, 100_000, "a")
        assert writer.stdout.readline()
        last = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        with Journal(tmp_path) as journal:
            numbers = [event.data["n"] for event in journal.events("step")]
            assert numbers[-1] >= last or last in numbers[-400:], "an announced event was lost"
            assert journal._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
