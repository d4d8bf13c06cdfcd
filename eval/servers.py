"""Starts one SGLang server, waits until it answers, and ends all of its processes whatever happens."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.client import Answer, Client
from specpilot_sglang.eval.processes import die_with_parent, family, free_port, kill_all, uninterrupted

_POLL_S = 0.25
_ERROR_CHARS = 400
#: How SGLang's log names a child that SIGKILL ended, and what it prints when it ends all of itself after an error.
_KILLED_CHILD = re.compile(r"(?:exit code:?|terminated with|with code) -9\b")
_CRASHED = re.compile(r"Traceback \(most recent|sigquit", re.IGNORECASE)
_SIGKILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
#: Seconds that a server is given, after an error, to end by itself: what ended one of its processes ends all of it.
_SETTLE_S = 3.0
_ERROR_LINE = re.compile(r"^(?:[\w.]+(?:Error|Exception|Interrupt|Exit)\b|.*\berror: |.*\bERROR\b)")


class ServerStartError(SpecPilotError):
    """The server ended or stayed silent before it was ready."""


class Server:
    """Context manager of one `python -m sglang.launch_server` process tree.

    Args:
        args: arguments after `sglang.launch_server`, without host and port.
        env: added to this process's environment.
        log: log file; a temporary one by default, deleted after a clean stop.
        start_timeout_s: how long the server may take from launch until it answers.
        stop_timeout_s: how long it may take to end after SIGTERM before it is killed.
        name: for messages.
        cwd: working folder of the server.

    Raises:
        ServerStartError: from `start`, with the log's last useful line and the log's path.
    """

    def __init__(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        start_timeout_s: float = 180.0,
        stop_timeout_s: float = 10.0,
        name: str = "server",
        cwd: Path | None = None,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.args, self.name, self.cwd = list(args), name, cwd
        self.client = Client(self.url)
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self._own_log = log is None
        self.log = log or Path(tempfile.mkstemp(prefix=f"specpilot-{name}-", suffix=".log")[1])
        self._start_timeout_s, self._stop_timeout_s = start_timeout_s, stop_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_with: int | None = None
        self.start_s = float("nan")
        self._begun = float("nan")
        self._paused: list[psutil.Process] = []

    @property
    def command(self) -> list[str]:
        """The full command line."""
        place = ["--host", "127.0.0.1", "--port", str(self.port)]
        return [sys.executable, "-m", "sglang.launch_server", *self.args, *place]

    @property
    def env(self) -> dict[str, str]:
        """The environment the server is started with."""
        return dict(self._env)

    @property
    def pid(self) -> int:
        """Process id of the launcher, which is also its session's id."""
        if self._process is None:
            raise SpecPilotError(f"{self.name} was not started", fix="use it in a `with` block")
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SpecPilotError | OSError) and self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_SETTLE_S)
        self.stop()
        if self._own_log and kind is None:
            self.log.unlink(missing_ok=True)

    def start(self) -> None:
        """Launch unless launched, and wait until `/health_generate` answers; clean up and raise when it does not.

        Does nothing to a server that was started.
        """
        if self._process is not None and math.isfinite(self.start_s):
            return
        self.start_s = float("nan")
        self.launch()
        try:
            self._wait(self._begun + self._start_timeout_s)
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - self._begun

    def launch(self) -> None:
        """Start the process and return at once, so that it loads beside other work; `start` then waits for it."""
        if self._process is not None:
            return
        self._begun = time.monotonic()
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the whole process tree: SIGTERM, then SIGKILL after `stop_timeout_s`. Safe to call twice."""
        with uninterrupted():
            self.resume()  # a stopped process does not hear SIGTERM
            process, self._process = self._process, None
            if process is None:
                return
            members, self._ended_with = family(process.pid), process.poll()
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._stop_timeout_s)
            left = kill_all({p.pid: p for p in [*members, *family(process.pid)]}.values())
            process.wait()
            self.client.close()
        if left:
            raise SpecPilotError(
                f"{self.name}: processes {left} did not end", fix=f"kill -9 {' '.join(map(str, left))}"
            )

    def pause(self) -> None:
        """Stop all processes but the launcher, so that an idle server's polling takes no CPU; see `resume`.

        The launcher goes on: it must hear that the process that started it has died, and then ends the others.
        """
        self._paused = [p for p in self.processes() if p.pid != self.pid]
        for process in self._paused:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        """Let a paused server go on; does nothing to one that is not paused."""
        for process in self._paused:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        self._paused = []

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL had ended the server before it was stopped, as far as exit code and log can tell.

        SGLang sends itself SIGKILL after an error, which its log shows; it also names a child that was killed.
        """
        if self._ended_with not in _SIGKILLED:
            return False
        text = "\n".join(self._log_lines())
        return bool(_KILLED_CHILD.search(text)) or not _CRASHED.search(text)

    def processes(self) -> list[psutil.Process]:
        """Return all live processes of the server."""
        return family(self.pid)

    def generate(self, **kwargs: Any) -> Answer:
        """See `Client.generate`."""
        return self.client.generate(**kwargs)

    def server_info(self) -> dict[str, Any]:
        """See `Client.server_info`."""
        return self.client.server_info()

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the log."""
        return "\n".join(self._log_lines()[-lines:])

    def _launch(self) -> None:
        with self.log.open("wb") as sink:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self.cwd,
                start_new_session=True,
                preexec_fn=die_with_parent,  # one system call, no locks, no allocation
            )

    def _wait(self, deadline: float) -> None:
        assert self._process is not None
        with httpx.Client(base_url=self.url, trust_env=False) as probe:
            while time.monotonic() < deadline:
                code = self._process.poll()
                if code is not None:
                    raise ServerStartError(
                        f"{self.name} ended with exit code {code} before it was ready: {last_error(self._log_lines())}",
                        where=self.log,
                    )
                try:
                    if probe.get("/health_generate", timeout=30.0).status_code == httpx.codes.OK:
                        return
                except httpx.HTTPError:
                    pass
                time.sleep(_POLL_S)
        raise ServerStartError(
            f"{self.name} did not answer in {self._start_timeout_s:.0f} s: {last_error(self._log_lines())}",
            where=self.log,
            fix="allow more time or look into the log",
        )

    def _log_lines(self) -> list[str]:
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return [line.rstrip() for line in text.splitlines() if line.strip()]


def last_error(lines: Sequence[str]) -> str:
    """Return the line of a server log that says best why it ended."""
    ours = [line for line in lines if "specpilot: error:" in line]
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    return (ours or errors or list(lines) or ["the log is empty"])[-1].strip()[:_ERROR_CHARS]
