"""Runs the benchmark client as a process and times it from outside, by this process's own clock."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.processes import die_with_parent, family, kill_all, uninterrupted

#: Lines the client prints right before it flushes the cache, and right after the last answer.
_BEGIN, _END = "Starting main benchmark run", "Serving Benchmark Result"
#: Seconds the client sleeps between flush and first request.
CLIENT_SLEEP_S = 1.0
#: What flush and a busy machine may add to the window seen from outside, in seconds and as a share.
_SLACK_S, _SLACK_SHARE = 0.75, 0.01
#: Seconds in which the client counts the tokens of one chunk of text, after its clock has stopped.
_COUNTING_S = 2e-4
#: Seconds by which two readings of the same clock by two processes may differ.
_EARLY_S = 0.1


@dataclass(frozen=True)
class OutsideClock:
    """What our own monotonic clock saw, in seconds.

    Attributes:
        wall_s: life of the client's process.
        window_s: from the client's line before its cache flush to the line after the last answer; None when it
            printed one of them not at all.
    """

    wall_s: float
    window_s: float | None

    def problems(self, claimed_s: float, chunks: int = 0) -> list[str]:
        """Return why the client's own duration cannot be true; empty when it can.

        Args:
            claimed_s: duration by the client's clock.
            chunks: pieces of text it received.
        """
        if self.window_s is None:
            return ["the client did not print when its timed run began and ended"]
        most, least = self.window_s - CLIENT_SLEEP_S + _EARLY_S, self.window_s - CLIENT_SLEEP_S
        least -= _SLACK_S + _SLACK_SHARE * self.window_s + _COUNTING_S * chunks
        if least <= claimed_s <= most:
            return []
        seen = f"between {max(0.0, least):.2f} and {most:.2f} s by our clock"
        return [f"the client claims {claimed_s:.2f} s for a run that took {seen}"]


def run_client(
    command: Sequence[str], env: Mapping[str, str], log: Path, timeout_s: float, passed: Sequence[int] = ()
) -> OutsideClock:
    """Run the client to its end, its output into `log`; end all of its processes whatever happens.

    The file descriptors in `passed` become the client's own.

    Raises:
        SpecPilotError: it failed or took longer than `timeout_s`, with its last line.
    """
    marks: dict[str, float] = {}
    begin = time.monotonic()
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(env),
        cwd=log.parent,
        start_new_session=True,
        pass_fds=passed,
        preexec_fn=die_with_parent,
    )
    for descriptor in passed:
        os.close(descriptor)
    assert process.stdout is not None
    reader = threading.Thread(target=_read, args=(process.stdout, log, marks), daemon=True)
    reader.start()
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise SpecPilotError(
            f"the benchmark client was not done after {timeout_s:.0f} s", where=log, fix="allow more time"
        ) from None
    finally:
        wall_s = time.monotonic() - begin
        with uninterrupted():
            kill_all(family(process.pid))
            process.wait()
            reader.join(10.0)
    if code != 0:
        raise SpecPilotError(f"the benchmark client ended with exit code {code}: {_last_line(log)}", where=log)
    window = marks[_END] - marks[_BEGIN] if _BEGIN in marks and _END in marks else None
    return OutsideClock(wall_s, window)


def _read(stream: IO[bytes], log: Path, marks: dict[str, float]) -> None:
    with log.open("wb") as sink, contextlib.suppress(ValueError):  # closed while reading: the client was ended
        for line in stream:
            now = time.monotonic()
            for mark in (_BEGIN, _END):
                if mark.encode() in line:
                    marks.setdefault(mark, now)
            sink.write(line)
            sink.flush()


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "no output")[:300]
    return "no output"
