"""Gives servers that are compared on a CPU the same cores: on a shared host two cores need not be equally fast."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from specpilot_sglang.eval.servers import Server

#: What SGLang calls the process that runs the model.
_MODEL_PROCESS = "sglang::scheduler"


def share_cores(servers: Iterable[Server], cores: Iterable[int] | None = None) -> tuple[int, ...]:
    """Put the servers' model processes on the same cores, all but the first; their other processes keep to that one.

    The first core is left to tokenisers and the load generator. Nothing is done on one core.

    Args:
        servers: started ones.
        cores: cores to share out; those of this process by default.

    Returns:
        The cores of the model processes; empty when nothing was done.
    """
    usable = sorted(os.sched_getaffinity(0) if cores is None else cores)
    if len(usable) < 2:
        return ()
    first, rest = usable[:1], usable[1:]
    for server in servers:
        for process in server.processes():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode(errors="replace")
                _pin(process.pid, rest if text.startswith(_MODEL_PROCESS) else first)
    return tuple(rest)


def _pin(pid: int, cores: Iterable[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread may end meanwhile
            os.sched_setaffinity(int(task.name), cores)
