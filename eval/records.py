"""Recorded runs: the token ids a server answered with, as JSON lines that token forcing can replay.

The first line describes the run (`kind: run`), each further line is one request (`kind: request`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.files import write_whole

FORMAT = 1


@dataclass(frozen=True)
class Request:
    """One request and its answer.

    Attributes:
        id: unique inside the run.
        suite: suite name, or empty.
        prompt_ids: prompt token ids, chat template applied.
        output_ids: generated token ids, end token included.
        finish: `stop`, `length`, or empty when the request failed.
        wall_s: seconds from sending to the full answer.
        verify_steps: verify passes; 0 without speculative decoding.
        error: why it failed; empty when it did not.
    """

    id: str
    suite: str
    prompt_ids: list[int]
    output_ids: list[int]
    finish: str
    wall_s: float = 0.0
    verify_steps: int = 0
    error: str = ""


@dataclass(frozen=True)
class Run:
    """A set of requests answered by one server under one sampling setting.

    Attributes:
        sampling: SGLang sampling parameters of every request.
        requests: in the order of the suite.
        about: server, model, versions; for reports only.
    """

    sampling: dict[str, Any]
    requests: list[Request]
    about: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the run to `path`; the file appears only when complete."""
        head = {"kind": "run", "format": FORMAT, "sampling": self.sampling, "about": self.about}
        rows = [head, *({"kind": "request", **asdict(r)} for r in self.requests)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write_whole(path, text, fix="choose another file")


def load_run(path: Path) -> Run:
    """Read a recorded run; raise `SpecPilotError` naming file and line when it is not one."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as exc:
        fix = "record one with `specpilot eval record`"
        raise SpecPilotError(f"cannot read the recorded run ({exc})", where=path, fix=fix) from exc
    rows = [_row(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    head = rows[0] if rows else {}
    if head.get("kind") != "run" or head.get("format") != FORMAT:
        raise SpecPilotError(
            f"not a recorded run of format {FORMAT}", where=f"{path}:1", fix="record it with `specpilot eval record`"
        )
    requests = [_request(row, path, number) for number, row in enumerate(rows[1:], 2)]
    ids = [r.id for r in requests]
    if len(set(ids)) != len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise SpecPilotError(f"request {twice!r} appears twice", where=path, fix="record the run again")
    return Run(dict(head.get("sampling") or {}), requests, dict(head.get("about") or {}))


def _row(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as exc:
        raise SpecPilotError(f"not JSON ({exc})", where=f"{path}:{number}", fix="record the run again") from exc
    if not isinstance(row, dict):
        raise SpecPilotError("not a JSON object", where=f"{path}:{number}", fix="record the run again")
    return row


def _request(row: dict[str, Any], path: Path, number: int) -> Request:
    known = {f.name for f in fields(Request)}
    try:
        request = Request(**{key: value for key, value in row.items() if key in known})
        if not all(type(i) is int for i in [*request.prompt_ids, *request.output_ids]):
            raise TypeError("token ids must be integers")
    except TypeError as exc:
        raise SpecPilotError(f"not a request ({exc})", where=f"{path}:{number}", fix="record the run again") from exc
    return request
