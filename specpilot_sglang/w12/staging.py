"""An output folder that appears under its final name only when it is complete.

Files are written to `.NAME.w12-partial` beside the destination, flushed to disk one by one and noted in
`.w12-state.json`; at the end the folder is renamed. After a kill at any point the destination does not exist (or is
the empty folder it was), and a second run of the same job goes on with the shards that were finished.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12.oserrors import os_errors
from specpilot_sglang.w12.rawfile import COPY_CHUNK
from specpilot_sglang.w12.rawwriter import discard, publish

#: Names that no model's file has.
_STATE, _LOCK = ".w12-state.json", ".w12-lock"


class Staging:
    """The unfinished output folder of one job.

    Args:
        destination: final folder; absent or empty.
        sources: folders that must be neither the destination, nor in it, nor around it.
        job: what identifies the job (source files with sizes and times, options); shards of another job
            are not reused.
        needed: bytes that the output will take at most; checked against the free space.
    """

    def __init__(self, destination: Path, sources: tuple[Path, ...], job: dict[str, Any], needed: int) -> None:
        self.final = Path(os.path.abspath(destination))
        for source in sources:
            _check_apart(source, self.final)
        _check_free(self.final)
        self.path = self.final.with_name(f".{self.final.name}.w12-partial")
        self._job = json.loads(json.dumps(job))
        self._done: dict[str, Any] = {}
        self._lock: IO[bytes] | None = None
        self._needed = needed

    def __enter__(self) -> Staging:
        with os_errors(self.final.parent, "write"):
            self.path.mkdir(parents=True, exist_ok=True)
            self._acquire()
            self._resume()
        done_bytes = sum(f.stat().st_size for f in self.path.iterdir() if f.is_file())
        free = shutil.disk_usage(self.path).free
        if self._needed - done_bytes > free:
            self._abandon()
            raise W12Error(
                f"cannot write: needs up to {self._needed - done_bytes:,} bytes, the disk has {free:,} free",
                where=self.final,
                fix="free space on that disk or choose another destination, then run again",
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self._abandon()

    def done(self, name: str) -> Any | None:
        """Return the note of a file that an earlier run finished, or None."""
        return self._done.get(name)

    def finish(self, name: str, note: Any) -> None:
        """Note that file `name` is complete."""
        self._done[name] = note
        state = {"job": self._job, "done": self._done}
        self.write(_STATE, json.dumps(state).encode())

    def forget(self) -> None:
        """Give finished files up: nothing stays behind when the job fails now."""
        self._done = {}

    def write(self, name: str | Path, data: bytes) -> None:
        """Write a small file, flushed to disk."""
        target = self.path / name
        with os_errors(self.final / name, "write"):
            target.parent.mkdir(parents=True, exist_ok=True)
            tmp = target.with_name(target.name + ".tmp")
            file = tmp.open("wb")
            try:
                file.write(data)
                publish(file, tmp, target)
            finally:
                discard(file, tmp)

    def copy(self, source: Path, name: Path) -> None:
        """Copy one file, flushed to disk."""
        target = self.path / name
        with os_errors(source, "read"):
            origin = source.open("rb")
        with origin, os_errors(self.final / name, "write"):
            target.parent.mkdir(parents=True, exist_ok=True)
            tmp = target.with_name(target.name + ".tmp")
            file = tmp.open("wb")
            try:
                shutil.copyfileobj(origin, file, COPY_CHUNK)
                publish(file, tmp, target)
            finally:
                discard(file, tmp)

    def commit(self) -> None:
        """Give the folder its final name."""
        with os_errors(self.final, "write"):
            (self.path / _STATE).unlink(missing_ok=True)
            (self.path / _LOCK).unlink()
            for folder in (self.path, *(p for p in self.path.rglob("*") if p.is_dir())):
                _sync_folder(folder)
            self.path.rename(self.final)
            _sync_folder(self.final.parent)
        self._release()

    def _acquire(self) -> None:
        import fcntl

        self._lock = (self.path / _LOCK).open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            self._release()
            raise W12Error(
                "another run is writing this destination", where=self.final, fix="wait for it or stop it"
            ) from exc

    def _resume(self) -> None:
        """Take over the finished files of an earlier run of the same job, remove everything else."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads((self.path / _STATE).read_bytes())
            if state["job"] == self._job:
                self._done = {n: note for n, note in state["done"].items() if (self.path / n).is_file()}
        for item in self.path.iterdir():
            if item.name in self._done or item.name in (_LOCK, _STATE):
                continue
            shutil.rmtree(item) if item.is_dir() else item.unlink()

    def _abandon(self) -> None:
        """Keep finished shards for the next run; without any, leave nothing behind."""
        if self._done:
            for tmp in self.path.rglob("*.tmp"):
                tmp.unlink(missing_ok=True)
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _check_apart(source: Path, destination: Path) -> None:
    a, b = source.resolve(), destination.resolve()
    if a == b:
        raise W12Error("source and destination are the same folder", where=destination, fix="choose another folder")
    if a in b.parents or b in a.parents:
        raise W12Error(f"lies inside or around the source {source}", where=destination, fix="choose another folder")


def _check_free(destination: Path) -> None:
    with os_errors(destination, "read"):
        if destination.is_symlink() or (destination.exists() and not destination.is_dir()):
            raise W12Error("exists and is not a folder", where=destination, fix="choose another destination")
        if destination.exists() and any(destination.iterdir()):
            raise W12Error("exists and is not empty", where=destination, fix="choose another destination or empty it")


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
