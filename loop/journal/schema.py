"""Tables of the journal, and how its SQLite file is opened."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError

FORMAT = 1
#: How long a writer waits for another one, in seconds.
_BUSY_S = 120.0

_TABLES = """
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL,
    job TEXT NOT NULL, token INTEGER NOT NULL, data TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_by_job ON events (job, seq);
CREATE INDEX IF NOT EXISTS events_by_kind ON events (kind, seq);
CREATE TRIGGER IF NOT EXISTS events_keep BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;
CREATE TRIGGER IF NOT EXISTS events_stay BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'events are never deleted'); END;
CREATE TABLE IF NOT EXISTS jobs (
    key TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, token INTEGER NOT NULL, worker TEXT NOT NULL,
    expires REAL NOT NULL, retries INTEGER NOT NULL, spec TEXT NOT NULL, result TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, kind);
CREATE TABLE IF NOT EXISTS artifacts (sha256 TEXT PRIMARY KEY, bytes INTEGER NOT NULL, name TEXT NOT NULL);
"""


def connect(path: Path) -> sqlite3.Connection:
    """Open the journal's file, making it when it is missing.

    Write-ahead log with `synchronous=FULL`: NORMAL can lose the last commits when power fails. The file must be on
    a local disk; the write-ahead log needs shared memory of one host.

    Raises:
        SpecPilotError: not a journal, of another format, damaged, or not writable.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        db.execute("PRAGMA synchronous=FULL")
        found = db.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, FORMAT):
            fix = "use the version that wrote it, or another --state"
            raise SpecPilotError(f"the journal has format {found}, this version reads {FORMAT}", where=path, fix=fix)
        if found == 0:
            db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version={FORMAT}; COMMIT;")
    except (sqlite3.Error, OSError) as exc:
        raise SpecPilotError(f"cannot open the journal ({exc})", where=path, fix="choose another --state") from exc
    if mode != "wal":
        db.close()
        raise SpecPilotError("this file system has no write-ahead log", where=path, fix="put --state on a local disk")
    return db
