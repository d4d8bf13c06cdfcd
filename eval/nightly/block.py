"""What one block measured: one fresh server, its loads, answers and memory; saved as one JSON file."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.files import write_whole
from specpilot_sglang.eval.load.results import LoadResult
from specpilot_sglang.eval.nightly.plan import BlockKey

FORMAT = 1


@dataclass(frozen=True)
class SuiteFigures:
    """Timed requests of one suite: wall seconds summed over requests, of which `ttft_s` up to the first token."""

    requests: int
    tokens: int
    latency_s: float
    ttft_s: float


@dataclass(frozen=True)
class LoadFigures:
    """One timed load.

    Attributes:
        concurrency: requests in flight.
        output_tok_s: output tokens a second, prompts included.
        duration_s: wall seconds.
        tokens: output tokens.
        failed: requests that failed.
        accept_length: tokens a verify step, the prefill's token left out; None for plain decoding.
        verify_steps: verify steps of all requests; None for plain decoding.
        ttft_p50_s, ttft_p99_s: time to the first token.
        itl_p50_s, itl_p99_s: gaps between arrivals.
        suites: by suite name.
    """

    concurrency: int
    output_tok_s: float
    duration_s: float
    tokens: int
    failed: int
    accept_length: float | None
    verify_steps: int | None
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p99_s: float
    suites: dict[str, SuiteFigures] = field(default_factory=dict)


@dataclass(frozen=True)
class BlockResult:
    """One block.

    Attributes:
        key: which block.
        command: the server's command line.
        start_s: seconds from launch to the first answer.
        loads: timed loads in the configuration's order.
        memory: bytes by name: `rss` of the process tree; `weights`, `kv_cache`, `graphs` as the server reports.
        accuracy: suite -> item id -> whether the answer was right; first round only.
        forcing: `ForcingReport.to_json()` against AR; first round of stock and plugin only.
        accept: suite -> {tokens, steps}; tokens out of verify steps, from the forcing's own first pass.
        histogram: how many verify steps accepted 0, 1, 2, ... drafted tokens, from the same pass.
        reference: recorded run of AR's answers beside the block's file; empty for other blocks.
        problems: why the block's answers or speed must not be believed.
        attestation: `GET /specpilot` at the end; None without the plugin.
        environment: versions, GPU, clocks, throttle reasons, as the load saw them.
        seconds: the whole block, server start included, waiting for the host's lock not.
    """

    key: BlockKey
    command: tuple[str, ...]
    start_s: float
    loads: tuple[LoadFigures, ...]
    memory: dict[str, float] = field(default_factory=dict)
    accuracy: dict[str, dict[str, bool]] = field(default_factory=dict)
    forcing: dict[str, Any] | None = None
    accept: dict[str, dict[str, int]] = field(default_factory=dict)
    histogram: tuple[int, ...] = ()
    reference: str = ""
    problems: tuple[str, ...] = ()
    attestation: dict[str, Any] | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def load(self, concurrency: int) -> LoadFigures | None:
        """Return the load at `concurrency`, if it was measured."""
        return next((load for load in self.loads if load.concurrency == concurrency), None)

    def save(self, path: Path) -> str:
        """Write the block to `path` in one step and return the file's SHA-256."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, default=str) + "\n"
        write_whole(path, text, fix="choose another `out:`")
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return hashlib.sha256(text.encode()).hexdigest()


def read_block(path: Path, sha256: str) -> BlockResult:
    """Read a block whose file must hash to `sha256`; raise `SpecPilotError` when it cannot be used."""
    try:
        raw = path.read_bytes()
    except OSError as exc:
        raise SpecPilotError(f"cannot read the block ({exc.strerror})", where=path, fix="measure it again") from exc
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise SpecPilotError("the block's file has changed since it was recorded", where=path, fix="measure it again")
    try:
        return _from_json(json.loads(raw))
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise SpecPilotError(f"not a block ({exc!r})", where=path, fix="measure it again") from exc


def _from_json(row: Mapping[str, Any]) -> BlockResult:
    if row["format"] != FORMAT:
        raise ValueError(f"format {row['format']}")
    names = {f.name for f in fields(BlockResult)}
    plain = {key: value for key, value in row.items() if key in names}
    loads = tuple(
        LoadFigures(**{**load, "suites": {k: SuiteFigures(**v) for k, v in load["suites"].items()}})
        for load in row["loads"]
    )
    tuples = {name: tuple(row[name]) for name in ("command", "histogram", "problems")}
    return BlockResult(**{**plain, **tuples, "key": BlockKey(**row["key"]), "loads": loads})


def figures_of(result: LoadResult) -> LoadFigures:
    """Return the figures of one load."""
    return LoadFigures(
        concurrency=result.concurrency,
        output_tok_s=result.output_tok_s,
        duration_s=result.duration_s,
        tokens=result.output_tokens,
        failed=len(result.samples) - len(result.good),
        accept_length=result.accept_length,
        verify_steps=result.verify_steps,
        ttft_p50_s=result.ttft_p50_s,
        ttft_p99_s=result.ttft_p99_s,
        itl_p50_s=result.itl_p50_s,
        itl_p99_s=result.itl_p99_s,
        suites={name: _suite(result, name) for name in dict.fromkeys(s.suite for s in result.samples)},
    )


def _suite(result: LoadResult, name: str) -> SuiteFigures:
    rows = [s for s in result.good if s.suite == name]
    latency, ttft = math.fsum(s.latency_s for s in rows), math.fsum(s.ttft_s for s in rows)
    return SuiteFigures(len(rows), sum(s.output_tokens for s in rows), latency, ttft)
