"""Sample the stacks of a starting server from outside, so that a long phase can be explained.

Uses `py-spy dump` (needs ptrace rights and py-spy on the PATH or in the Python environment). Without py-spy the
sampler records nothing and says so in `note`; the measurement goes on.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from specpilot_sglang.errors import SpecPilotError

logger = logging.getLogger(__name__)
DUMP_TIMEOUT_S = 15.0


def find_py_spy() -> str | None:
    """Return the py-spy executable of the PATH or beside one of `sys.path`'s folders (`pip install --target`)."""
    found = shutil.which("py-spy")
    if found:
        return found
    return next((str(exe) for folder in sys.path if (exe := Path(folder) / "bin" / "py-spy").is_file()), None)


def dump_threads(py_spy: str, pid: int) -> list[dict[str, Any]]:
    """Return py-spy's threads of `pid` as decoded JSON; empty when the process is gone or cannot be read."""
    try:
        done = subprocess.run(
            [py_spy, "dump", "--json", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=DUMP_TIMEOUT_S,
            check=False,
        )
        return list(json.loads(done.stdout)) if done.returncode == 0 else []
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return []


def short_stack(thread: dict[str, Any], depth: int) -> list[str]:
    """Return the innermost `depth` frames of a thread as `function (file:line)`."""
    return [f"{f['name']} ({f['short_filename'] or f['filename']}:{f['line']})" for f in thread["frames"][:depth]]


def compilers_below(process: psutil.Process) -> list[str]:
    """Return the names of compiler processes that run below `process` (nvcc, ptxas, cicc, ninja, ...)."""
    names = {"nvcc", "cicc", "ptxas", "ninja", "cc1plus", "cudafe++", "gcc", "g++", "ld", "nvlink", "fatbinary"}
    running = (child.name() for child in process.children(recursive=True))
    return sorted(name for name in running if name in names)


class StackSampler(threading.Thread):
    """Samples the scheduler process of a server every `period_s` seconds until `stop()` is called.

    Args:
        root_pid: gives the launcher's process id, or raises while there is none yet.
        period_s: seconds between samples.
        depth: innermost frames kept of each stack.
    """

    def __init__(self, root_pid: Callable[[], int], period_s: float, depth: int = 40) -> None:
        super().__init__(daemon=True)
        self.samples: list[dict[str, Any]] = []
        self.note = ""
        self._root_pid, self._period_s, self._depth = root_pid, period_s, depth
        self._done = threading.Event()
        self._begin = time.monotonic()

    def run(self) -> None:
        """Sample until stopped; errors of a vanishing process are expected and end one sample, not the thread."""
        py_spy = find_py_spy()
        if py_spy is None:
            self.note = "py-spy is not installed: no stacks were sampled"
            return
        while not self._done.wait(self._period_s):
            try:
                self._sample(py_spy)
            except (psutil.Error, SpecPilotError) as error:
                logger.debug("stack sample skipped: %s", error)

    def stop(self) -> None:
        """End the sampling and wait for the sample in progress."""
        self._done.set()
        self.join(DUMP_TIMEOUT_S + self._period_s)

    def summary(self) -> list[tuple[str, int]]:
        """Return how many samples each innermost frame had, most frequent first."""
        return Counter(s["stack"][0] for s in self.samples if s["stack"]).most_common(25)

    def _sample(self, py_spy: str) -> None:
        root = psutil.Process(self._root_pid())
        workers = [p for p in root.children(recursive=True) if "scheduler" in " ".join(p.cmdline()) + p.name()]
        target = workers[0] if workers else root
        threads = dump_threads(py_spy, target.pid)
        main = next((t for t in threads if t.get("os_thread_id") == target.pid), None)
        self.samples.append(
            {
                "seconds": round(time.monotonic() - self._begin, 1),
                "process": "scheduler" if workers else "launcher",
                "compilers": compilers_below(root),
                "stack": short_stack(main, self._depth) if main else [],
            }
        )
