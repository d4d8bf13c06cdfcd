"""The journal of an experiment: a folder in which a finished block is never lost and never counted twice.

experiment.json      what is run: arms, regime, seed; a resumed experiment must say the same
blocks/0003.json     one finished block, written after all files it names
loads/0003-1-stock/  result, client log and server log of one launch (block, attempt, arm)
failures.jsonl       failed attempts, of the infrastructure and of the candidate apart
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.block import Block
from specpilot_sglang.eval.ab.durable import append_line, finite, read_lines, write_json

FORMAT = 1


class Journal:
    """An experiment's folder, held by one process at a time; use it in a `with` block to write.

    Args:
        root: the folder; made when missing.
        identity: what the experiment is; compared with what a former start wrote.
    """

    def __init__(self, root: Path, identity: Mapping[str, Any] | None = None) -> None:
        self.root, self._identity = root, identity
        self._lock = FileLock(root / ".lock", timeout=0)

    def __enter__(self) -> Self:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout as exc:
            raise SpecPilotError("another process runs this experiment", where=self.root, fix="wait for it") from exc
        except OSError as exc:
            raise SpecPilotError(f"cannot use it ({exc.strerror or exc})", where=self.root, fix="choose --out") from exc
        try:
            self._check_identity()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def identity(self) -> dict[str, Any]:
        """Return what the experiment is; raise `SpecPilotError` when the folder holds none."""
        return dict(_read(self.root / "experiment.json")["identity"])

    def blocks(self) -> list[Block]:
        """Return all finished blocks in order, with no gap.

        Raises:
            SpecPilotError: a block file that cannot be read: finished work is never silently dropped.
        """
        found = []
        for path in sorted((self.root / "blocks").glob("[0-9]*.json")):
            try:
                found.append(Block.from_json(_read(path), self.root))
            except (KeyError, TypeError, ValueError, AttributeError) as exc:
                raise SpecPilotError(f"not a block ({exc!r})", where=path, fix="restore the file") from exc
        for place, block in enumerate(found):
            if block.index != place:
                path = self.root / "blocks" / f"{place:04d}.json"
                raise SpecPilotError("this block is missing, later ones are there", where=path, fix="restore it")
        return found

    def add(self, block: Block) -> None:
        """Write a finished block; from here on it counts."""
        path = self.root / "blocks" / f"{block.index:04d}.json"
        if path.exists():
            raise SpecPilotError("this block was written before", where=path, fix="never run a block twice")
        write_json(path, block.to_json())

    def fail(self, **what: Any) -> None:
        """Record one failed attempt."""
        append_line(self.root / "failures.jsonl", what)

    def failures(self) -> list[dict[str, Any]]:
        """Return every recorded failure: `block`, `attempt`, `arm`, `blame`, `error`, `log`."""
        return read_lines(self.root / "failures.jsonl")

    def _check_identity(self) -> None:
        path = self.root / "experiment.json"
        wanted = json.loads(json.dumps(finite(self._identity), default=str))
        if not path.exists():
            if self._identity is None:
                raise SpecPilotError("no experiment here", where=path, fix="give the folder of an experiment")
            write_json(path, {"format": FORMAT, "identity": wanted})
        elif self._identity is not None and self.identity() != wanted:
            differ = sorted(k for k in {*wanted, *self.identity()} if wanted.get(k) != self.identity().get(k))
            what = f"the folder holds another experiment: {', '.join(differ)} differ"
            raise SpecPilotError(what, where=path, fix="choose another --out, or repeat the former settings")


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise SpecPilotError(f"cannot read ({exc})", where=path, fix="restore the file or choose another") from exc
    if not isinstance(value, dict):
        raise SpecPilotError("not a JSON object", where=path, fix="restore the file or choose another")
    return value
