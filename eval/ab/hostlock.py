"""Locks a host for the length of one block, fairly, in step with `flock(1)` in scripts."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError


@contextmanager
def host_lock(path: Path | None) -> Iterator[None]:
    """Hold an exclusive `flock` on `path` inside the block; wait for it in the kernel's queue. None locks nothing.

    A lock that polls would starve behind waiting `flock` processes, which the kernel serves first.
    """
    if path is None:
        yield
        return
    try:
        handle = path.open("a")
    except OSError as exc:
        raise SpecPilotError(f"cannot open the lock ({exc.strerror or exc})", where=path, fix="choose another") from exc
    with handle:  # closing the file gives the lock back
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
