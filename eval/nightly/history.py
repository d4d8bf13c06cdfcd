"""The history: every run, finished block and figure, in one SQLite file that survives a kill at any moment."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from specpilot_sglang.eval.nightly.database import open_database
from specpilot_sglang.eval.nightly.plan import BlockKey


@dataclass(frozen=True)
class RunRow:
    """One nightly run: `resumed` when an earlier process began it."""

    id: int
    started_at: str
    resumed: bool


@dataclass(frozen=True)
class BlockRow:
    """A finished block: its artifact's path relative to the output folder, and the artifact's SHA-256."""

    key: BlockKey
    attempt: int
    state: str
    artifact: str
    sha256: str
    reason: str


@dataclass(frozen=True)
class Point:
    """One figure of one finished run."""

    run: int
    started_at: str
    code: str
    value: float


class History:
    """Reads and writes one history file; every method that writes has committed when it returns.

    Args:
        path: SQLite file, created when missing; a damaged one is moved aside first.

    Attributes:
        notices: what the user must know about the file, such as where a damaged one was kept.

    Raises:
        SpecPilotError: not a history, written by a newer version, or not writable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db, self.notices = open_database(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def begin(
        self, *, name: str, config: Mapping[str, Any], digest: str, code: str, host: str, within_h: float, fresh: bool
    ) -> RunRow:
        """Return the unfinished run of the same configuration, code and host, or a new one.

        Any other unfinished run of that name is given up, its blocks kept. `fresh` gives up that one too.
        """
        oldest = (datetime.now(UTC) - timedelta(hours=within_h)).isoformat(timespec="seconds")
        with self._db:
            found = self._db.execute(
                "SELECT id, started_at FROM runs WHERE state = 'running' AND name = ? AND digest = ? AND code = ?"
                " AND host = ? AND started_at >= ? ORDER BY id DESC LIMIT 1",
                (name, digest, code, host, oldest),
            ).fetchone()
            keep = found["id"] if found and not fresh else -1
            self._db.execute(
                "UPDATE runs SET state = 'given up', finished_at = ? WHERE state = 'running' AND name = ? AND id != ?",
                (now(), name, keep),
            )
            if keep >= 0:
                return RunRow(keep, found["started_at"], resumed=True)
            started = now()
            cursor = self._db.execute(
                "INSERT INTO runs (name, config, digest, code, host, state, started_at)"
                " VALUES (?, ?, ?, ?, ?, 'running', ?)",
                (name, json.dumps(config, sort_keys=True), digest, code, host, started),
            )
        return RunRow(int(cursor.lastrowid or 0), started, resumed=False)

    def add_block(self, run: int, row: BlockRow) -> None:
        """Record a block whose artifact is on disk already."""
        key = row.key
        with self._db:
            self._db.execute(
                "INSERT INTO blocks (run, deployment, arm, round, attempt, state, artifact, sha256, reason,"
                " finished_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(run, key.deployment, key.arm, key.round, row.attempt),
                    *(row.state, row.artifact, row.sha256, row.reason, now()),
                ),
            )

    def blocks(self, run: int) -> list[BlockRow]:
        """Return every recorded attempt of a run's blocks, oldest first."""
        rows = self._db.execute("SELECT * FROM blocks WHERE run = ? ORDER BY rowid", (run,))
        return [
            BlockRow(
                BlockKey(r["deployment"], r["arm"], r["round"]),
                *(r["attempt"], r["state"], r["artifact"], r["sha256"], r["reason"]),
            )
            for r in rows
        ]

    def finish(self, run: int, verdict: Mapping[str, Any], figures: Mapping[str, Mapping[str, float]]) -> None:
        """Close a run with its verdict and figures (`series -> metric -> value`), all or nothing."""
        rows = [(run, series, metric, value) for series, row in figures.items() for metric, value in row.items()]
        with self._db:
            self._db.execute("DELETE FROM figures WHERE run = ?", (run,))
            self._db.executemany("INSERT INTO figures (run, series, metric, value) VALUES (?, ?, ?, ?)", rows)
            self._db.execute(
                "UPDATE runs SET state = 'done', finished_at = ?, verdict = ? WHERE id = ?",
                (now(), json.dumps(verdict, sort_keys=True), run),
            )

    def points(self, series: str) -> dict[str, list[Point]]:
        """Return the finished runs' figures of `series` by metric, in the order they were measured."""
        rows = self._db.execute(
            "SELECT f.metric, f.value, r.id, r.started_at, r.code FROM figures f JOIN runs r ON r.id = f.run"
            " WHERE f.series = ? AND r.state = 'done' ORDER BY r.started_at, r.id",
            (series,),
        )
        found: dict[str, list[Point]] = {}
        for r in rows:
            found.setdefault(r["metric"], []).append(Point(r["id"], r["started_at"], r["code"], r["value"]))
        return found

    def runs(self) -> list[dict[str, Any]]:
        """Return all runs, oldest first, as plain values."""
        rows = self._db.execute("SELECT id, name, state, code, host, started_at, finished_at FROM runs ORDER BY id")
        return [dict(r) for r in rows]

    def backup(self, target: Path) -> None:
        """Copy the whole history to a new file `target` while it stays open."""
        with closing(sqlite3.connect(target)) as copy:
            self._db.backup(copy)


def now() -> str:
    """Return the time as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
