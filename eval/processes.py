"""Finds and ends every process of a server that was started in a session of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator

import psutil

_PR_SET_PDEATHSIG = 1
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here: not between fork and exec


def free_port() -> int:
    """Return a TCP port of the loopback interface that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def die_with_parent() -> None:
    """Ask Linux to send SIGTERM to the calling process when the thread that started it ends.

    Meant for `preexec_fn`: it covers a parent that is killed and cannot clean up. Does nothing elsewhere.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def family(leader: int) -> list[psutil.Process]:
    """Return the live processes of session `leader` and the descendants of its leader, the leader included.

    The session finds orphans whose parent has ended; the descendants find those with a session of their own.
    """
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(leader)
        for process in [root, *root.children(recursive=True)]:
            found[process.pid] = process
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if pid not in found and os.getsid(pid) == leader:
                found[pid] = psutil.Process(pid)
    return [p for p in found.values() if _alive(p)]


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Put Ctrl-C, SIGTERM and SIGHUP off until the block is over, so that clean-up is not cut short.

    By handlers, not by a signal mask: a signal that another thread takes still raises in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted
        return
    late: list[int] = []
    before = {number: signal.signal(number, lambda got, frame: late.append(got)) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if late:
            signal.raise_signal(late[0])


def kill_all(processes: Iterable[psutil.Process], timeout_s: float = 10.0) -> list[int]:
    """Send SIGKILL to all, wait for their end and return the ids of those still alive (normally none)."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    deadline = time.monotonic() + timeout_s
    while (alive := [p for p in processes if _alive(p)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [p.pid for p in alive]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
