"""The local executor: a process with a session of its own, which ends with the controller."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from specpilot_sglang.eval.processes import die_with_parent, family, kill_all
from specpilot_sglang.loop.executors.base import JobSpec, JobStatus

_STOP_S = 20.0


class LocalExecutor:
    """Runs jobs on this host."""

    name = "local"

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def submit(self, job: JobSpec) -> None:
        """Start the job unless it runs; what a killed controller left of it is ended first."""
        if job.id in self._running:
            return
        end_orphan(job.folder)
        job.write()
        (job.folder / "result.json").unlink(missing_ok=True)
        with (job.folder / "job.log").open("ab") as log:
            # -P: another copy of this package in the working folder must not do the judging.
            self._running[job.id] = subprocess.Popen(
                [sys.executable, "-P", "-m", "specpilot_sglang.loop.executors.job", str(job.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def poll(self, job: JobSpec) -> JobStatus:
        """Return where the job stands; a process that ended without a result is lost."""
        process = self._running.get(job.id)
        if process is None:
            return JobStatus.UNKNOWN
        if process.poll() is None:
            return JobStatus.RUNNING
        return JobStatus.ENDED if (job.folder / "result.json").exists() else JobStatus.LOST

    def cancel(self, job: JobSpec) -> None:
        """End the job's session: SIGTERM, so that it ends its servers, then SIGKILL."""
        process = self._running.pop(job.id, None)
        if process is not None:
            _end(process)

    def close(self) -> None:
        """End every job."""
        for process in self._running.values():
            _end(process)
        self._running.clear()


def end_orphan(folder: Path) -> list[int]:
    """End the processes of a job whose controller was killed, by the process id that it wrote; return those ended."""
    path = folder / "pid"
    try:
        pid, written = int(path.read_text()), path.stat().st_mtime
        process = psutil.Process(pid)
        # The same number may belong to another program by now.
        same = str(folder) in process.cmdline() and process.create_time() <= written + 1.0
    except (OSError, ValueError, psutil.Error):
        return []
    if not same:
        return []
    members = family(pid)
    kill_all(members)
    return [member.pid for member in members]


def _end(process: subprocess.Popen[bytes]) -> None:
    members = family(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    kill_all({p.pid: p for p in [*members, *family(process.pid)]}.values())
    process.wait()
