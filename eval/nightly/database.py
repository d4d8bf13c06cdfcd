"""Opens a history file: checks it, creates its tables, and keeps a damaged one aside."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError

#: Marks the file as ours (`PRAGMA application_id`), and the version of its tables (`PRAGMA user_version`).
APPLICATION, SCHEMA = 0x53504E4C, 1

_TABLES = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, config TEXT NOT NULL, digest TEXT NOT NULL, code TEXT NOT NULL,
    host TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('running', 'done', 'given up')),
    started_at TEXT NOT NULL, finished_at TEXT, verdict TEXT
);
CREATE TABLE blocks (
    run INTEGER NOT NULL REFERENCES runs (id), deployment TEXT NOT NULL, arm TEXT NOT NULL, round INTEGER NOT NULL,
    attempt INTEGER NOT NULL, state TEXT NOT NULL CHECK (state IN ('done', 'failed')), artifact TEXT NOT NULL,
    sha256 TEXT NOT NULL, reason TEXT NOT NULL, finished_at TEXT NOT NULL,
    UNIQUE (run, deployment, arm, round, attempt)
);
CREATE TABLE figures (
    run INTEGER NOT NULL REFERENCES runs (id), series TEXT NOT NULL, metric TEXT NOT NULL, value REAL NOT NULL,
    UNIQUE (run, series, metric)
);
"""


def open_database(path: Path) -> tuple[sqlite3.Connection, list[str]]:
    """Open or create the history at `path`; return the connection and what the user must know.

    A file that SQLite finds damaged is renamed, with its write-ahead log, and a new one is begun beside it.

    Raises:
        SpecPilotError: the folder or file cannot be used, is another program's, or is of a newer version.
    """
    notices = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and (damage := _damage(path)):
            kept = _keep_aside(path)
            notices.append(f"the history {path} was damaged ({damage}); it is kept as {kept}, a new one was begun")
        return _open(path), notices
    except (OSError, sqlite3.Error) as exc:
        fix = "choose a file on a writable local disk (`history:`)"
        raise SpecPilotError(f"cannot open the history ({exc})", where=path, fix=fix) from exc


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30.0)
    db.row_factory = sqlite3.Row
    try:
        _check_ours(db, path)
        # FULL, not NORMAL: with WAL, NORMAL may lose the last commits on power loss.
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        if _version(db) == 0:
            # One transaction, so that a kill leaves either no table or all of them and the version.
            db.executescript(
                f"BEGIN IMMEDIATE; {_TABLES} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA};"
                " COMMIT;"
            )
    except BaseException:
        db.close()
        raise
    return db


def _check_ours(db: sqlite3.Connection, path: Path) -> None:
    version = _version(db)
    application = int(db.execute("PRAGMA application_id").fetchone()[0])
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and application != APPLICATION:
        raise SpecPilotError("this SQLite file is no nightly history", where=path, fix="choose another `history:`")
    if version > SCHEMA:
        what = f"the history has schema {version}, this version knows {SCHEMA}"
        raise SpecPilotError(what, where=path, fix="upgrade specpilot-sglang, or choose another `history:`")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _damage(path: Path) -> str:
    """Return what is wrong with the file, empty when nothing is; a locked or unreadable file raises."""
    try:
        with closing(sqlite3.connect(path, timeout=30.0)) as db:
            rows = [str(row[0]) for row in db.execute("PRAGMA integrity_check(3)")]
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as exc:
        return str(exc)
    return "" if rows == ["ok"] else "; ".join(rows)[:200]


def _keep_aside(path: Path) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    number = 0
    while True:
        kept = path.with_name(f"{path.name}.damaged-{stamp}{f'-{number}' if number else ''}")
        if not kept.exists():
            break
        number += 1
    for suffix in ("-wal", "-shm"):  # first the log: alone it is nothing, and the new file must not replay it
        log = path.with_name(path.name + suffix)
        if log.exists():
            log.rename(kept.with_name(kept.name + suffix))
    path.rename(kept)
    return kept
