"""A cgroup v2 group for a jail where this user may make one: limits on sums, held between two looks of the watch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from specpilot_sglang.loop.jail.limits import MIB, Limits

_ROOT = Path("/sys/fs/cgroup")


def parent(root: Path = _ROOT, own: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Return this process's own cgroup v2 folder when groups with memory and pids limits can be made below it."""
    try:
        line = next(row for row in own.read_text().splitlines() if row.startswith("0::"))
        folder = root / line[3:].lstrip("/")
        enabled = (folder / "cgroup.subtree_control").read_text().split()
    except (OSError, StopIteration):
        return None
    return folder if {"memory", "pids"} <= set(enabled) and os.access(folder, os.W_OK) else None


@contextlib.contextmanager
def group(pid: int, limits: Limits, root: Path | None = None) -> Iterator[bool]:
    """Put process `pid`, and so all it starts, into a group of its own inside the block; yield whether that worked.

    The two folders in memory count as memory of the group, so its limit is memory and both folders together.
    """
    base = parent() if root is None else root
    if base is None:
        yield False
        return
    folder = base / f"specpilot-jail-{pid}"
    try:
        folder.mkdir()
        (folder / "memory.max").write_text(str((limits.memory_mib + 2 * limits.disk_mib) * MIB))
        (folder / "pids.max").write_text(str(limits.processes + 8))
        (folder / "cgroup.procs").write_text(str(pid))
        made = True
    except OSError:
        made = False
    try:
        yield made
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
