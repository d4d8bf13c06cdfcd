"""The memory's file: SQLite with full-text search; the same thing said twice is kept once and counted."""

from __future__ import annotations

import json
import re
import sqlite3
from importlib import resources
from pathlib import Path

from pydantic import ValidationError
from ruamel.yaml import YAML

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.memory.entry import Entry

_TABLES = """
CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL, deployment TEXT NOT NULL,
    times INTEGER NOT NULL, body TEXT NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (mechanism, hypothesis, change, reason, scope, tokenize='porter');
"""
_WORD = re.compile(r"[A-Za-z0-9]+")


class Memory:
    """All entries, in the file `path`.

    Args:
        path: SQLite file; made, with the seeds, when missing.
        seeds: False leaves the packaged facts out.
    """

    def __init__(self, path: Path, *, seeds: bool = True) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=60.0, check_same_thread=False)
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_TABLES)
        except (sqlite3.Error, OSError) as exc:
            raise SpecPilotError(f"cannot open the memory ({exc})", where=path, fix="choose another --state") from exc
        for entry in packaged() if seeds else ():
            if self.get(entry.key) is None:
                self.add(entry)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def add(self, entry: Entry) -> bool:
        """Keep an entry; return False when the same was known, which then counts once more and is renewed."""
        with self._db:
            row = self._db.execute("SELECT id, body FROM entries WHERE key = ?", (entry.key,)).fetchone()
            if row is not None and row[1] == entry.model_dump_json():
                return False  # written again after a kill: that is no second time
            if row is None:
                values = (entry.key, entry.deployment, entry.model_dump_json())
                cursor = self._db.execute("INSERT INTO entries (key, deployment, times, body) VALUES (?,?,1,?)", values)
                number = cursor.lastrowid
            else:
                number = row[0]
                text = "UPDATE entries SET times = times + 1, body = ? WHERE id = ?"
                self._db.execute(text, (entry.model_dump_json(), number))
                self._db.execute("DELETE FROM words WHERE rowid = ?", (number,))
            words = (entry.mechanism, entry.hypothesis, entry.change, entry.reason, entry.scope)
            text = "INSERT INTO words (rowid, mechanism, hypothesis, change, reason, scope) VALUES (?,?,?,?,?,?)"
            self._db.execute(text, (number, *words))
        return row is None

    def get(self, key: str) -> Entry | None:
        """Return the entry of this key."""
        row = self._db.execute("SELECT body FROM entries WHERE key = ?", (key,)).fetchone()
        return Entry.model_validate_json(row[0]) if row else None

    def search(self, text: str, deployment: str = "", limit: int = 8) -> list[Entry]:
        """Return entries with any word of `text`, best first; of one deployment and of all, when one is given."""
        words = _WORD.findall(text)
        if not words:
            return []
        # Quoted, so that no word of a query is an operator of the query language.
        query = " OR ".join(f'"{word}"' for word in dict.fromkeys(words))
        where = " AND e.deployment IN (?, 'any')" if deployment else ""
        rows = self._db.execute(
            f"SELECT e.body FROM words JOIN entries e ON e.id = words.rowid WHERE words MATCH ?{where}"
            " ORDER BY bm25(words), e.id LIMIT ?",
            (query, *((deployment,) if deployment else ()), limit),
        )
        return [Entry.model_validate_json(row[0]) for row in rows]

    def all(self) -> list[tuple[Entry, int]]:
        """Return every entry and how often it was met, in the order of their first time."""
        rows = self._db.execute("SELECT body, times FROM entries ORDER BY id").fetchall()
        return [(Entry.model_validate_json(body), times) for body, times in rows]

    def markdown(self) -> str:
        """Return the memory as one document, by mechanism."""
        lines, rows = ["# What is known", ""], self.all()
        for mechanism in sorted({entry.mechanism for entry, _ in rows}):
            lines += [f"## {mechanism}", ""]
            lines += [_line(entry, times) for entry, times in rows if entry.mechanism == mechanism]
            lines.append("")
        return "\n".join(lines)


def packaged() -> list[Entry]:
    """Return the facts that come with the package; raise `SpecPilotError` when one is malformed."""
    text = (resources.files(__package__) / "seeds.yaml").read_text(encoding="utf-8")
    try:
        return [Entry(**json.loads(json.dumps(row)), origin="seed") for row in YAML(typ="safe").load(text)]
    except (ValidationError, TypeError) as exc:
        raise SpecPilotError(f"a packaged fact is malformed ({exc})", where="seeds.yaml") from exc


def _line(entry: Entry, times: int) -> str:
    gain = "" if entry.measured is None else f" Measured {100 * entry.measured:+.1f}%"
    gain += "" if entry.lower is None else f" (at least {100 * entry.lower:+.1f}%)"
    parts = [entry.hypothesis, f"Change: {entry.change}." if entry.change else "", gain.strip() + "." if gain else ""]
    parts += [
        entry.reason,
        f"Holds for: {entry.scope}." if entry.scope else "",
        f"Met {times} times." if times > 1 else "",
    ]
    links = f" [{', '.join(entry.links)}]" if entry.links else ""
    return f"- **{entry.deployment}**, {entry.verdict}: {' '.join(' '.join(p.split()) for p in parts if p)}{links}"
