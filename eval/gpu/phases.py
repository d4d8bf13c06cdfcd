"""Where a server's start-up time goes, read from the timestamps of its log."""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

# SGLang logs "[2026-11-30 01:02:03.456 ...] message" (milliseconds with SGLANG_LOG_MS), FlashInfer
# "2026-11-30 01:02:03,456 - INFO - message".
_STAMP = re.compile(r"^\[?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,](\d+))?(?:[^\]]*\]| -) (.*)$")

# First match wins. The text on the right is what SGLang 0.5.23 writes.
MILESTONES: tuple[tuple[str, str], ...] = (
    ("arguments parsed", r"server_args="),
    ("distributed set up", r"Init torch distributed begin"),
    ("weights begin", r"Load weight begin"),
    ("weights end", r"Load weight end"),
    ("recurrent state allocated", r"Mamba Cache is allocated"),
    ("KV cache allocated", r"KV Cache is allocated"),
    ("capture begin", r"Capture .* begin"),
    ("capture end", r"Capture .* end"),
    ("JIT build", r"Building JIT module|Compiling"),
    ("draft runner ready", r"DFLASH draft runner ready"),
    ("sampling warmed", r"sampling pre-warm"),
    ("scheduler ready", r"max_total_num_tokens="),
    ("HTTP up", r"Uvicorn running|Application startup complete"),
    ("serving", r"The server is fired up"),
)
MEMORY = re.compile(r"avail mem|mem usage|Cache is allocated|intermediate_ssm|max_total_num_tokens", re.IGNORECASE)


class Mark(NamedTuple):
    """One milestone: its name, seconds since the log's first stamp, and the log line's text."""

    name: str
    seconds: float
    text: str


def milestones(log: str) -> list[Mark]:
    """Return the milestones of a server log in order; the log's first stamped line is second 0."""
    marks: list[Mark] = []
    start: datetime | None = None
    for line in log.splitlines():
        stamped = _STAMP.match(line)
        if stamped is None:
            continue
        moment = datetime.strptime(stamped[1], "%Y-%m-%d %H:%M:%S")
        moment = moment.replace(microsecond=int((stamped[2] or "0").ljust(6, "0")[:6]))
        start = start or moment
        name = next((name for name, pattern in MILESTONES if re.search(pattern, stamped[3])), None)
        if name is not None:
            marks.append(Mark(name, (moment - start).total_seconds(), stamped[3][:240]))
    return marks


def memory_lines(log: str) -> list[str]:
    """Return the log lines that state memory: weights, KV cache, recurrent state and its snapshots."""
    return [line[:400] for line in log.splitlines() if MEMORY.search(line)]
