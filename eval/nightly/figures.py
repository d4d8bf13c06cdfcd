"""The figures of a night by deployment, arm and concurrency, with intervals, for the judge and the history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specpilot_sglang.eval.nightly.block import BlockResult
from specpilot_sglang.eval.nightly.history import Point
from specpilot_sglang.eval.nightly.intervals import Ratio, Spread, ratio
from specpilot_sglang.eval.nightly.run import Night

#: Comparisons that a report shows: (arm, base).
PAIRS = (("stock", "ar"), ("specpilot", "ar"), ("specpilot", "stock"))
#: Earlier runs whose launch noise is pooled in.
_POOLED_RUNS = 30


@dataclass(frozen=True)
class Comparison:
    """Speed of `arm` over `base` at one concurrency."""

    arm: str
    base: str
    concurrency: int
    ratio: Ratio

    @property
    def metric(self) -> str:
        """The figure's name in the history."""
        return f"speedup.{self.arm}.over.{self.base}.c{self.concurrency}"


def comparisons(
    night: Night,
    deployment: str,
    concurrencies: Sequence[int],
    history: Mapping[str, Sequence[Point]],
    confidence: float,
) -> list[Comparison]:
    """Return every pair of arms at every concurrency, over the rounds that both arms have."""
    found = []
    for concurrency in concurrencies:
        for arm, base in PAIRS:
            tops, bottoms = (_speeds(night.of(deployment, name), concurrency) for name in (arm, base))
            logs = [math.log(tops[r] / bottoms[r]) for r in sorted(tops.keys() & bottoms.keys())]
            if logs:
                metric = Comparison(arm, base, concurrency, ratio([])).metric
                pooled = ratio(logs, earlier_spread(history, metric), confidence)
                found.append(Comparison(arm, base, concurrency, pooled))
    return found


def earlier_spread(history: Mapping[str, Sequence[Point]], metric: str) -> Spread:
    """Return the spread of `metric` inside earlier runs; a run counts when both of its parts are there."""
    squares = {p.run: p.value for p in history.get(f"squares.{metric}", ())}
    freedom = {p.run: p.value for p in history.get(f"freedom.{metric}", ())}
    runs = sorted(squares.keys() & freedom.keys())[-_POOLED_RUNS:]
    return Spread(math.fsum(squares[r] for r in runs), int(sum(freedom[r] for r in runs)))


def figures(night: Night, deployment: str, compared: Sequence[Comparison]) -> dict[str, float]:
    """Return every figure of a deployment that goes into the history, by metric; NaN ones are left out."""
    found: dict[str, float] = {}
    for c in compared:
        found[c.metric] = c.ratio.value
        found[f"squares.{c.metric}"], found[f"freedom.{c.metric}"] = c.ratio.spread.squares, c.ratio.spread.freedom
    for arm in ("ar", "stock", "specpilot"):
        blocks = night.of(deployment, arm)
        if blocks:
            found.update({f"{name}.{arm}{rest}": value for name, rest, value in _arm_figures(blocks)})
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def _arm_figures(blocks: Sequence[BlockResult]) -> list[tuple[str, str, float]]:
    rows: list[tuple[str, str, float]] = []
    for load in blocks[0].loads:
        same = [found for b in blocks if (found := b.load(load.concurrency)) is not None]
        place = f".c{load.concurrency}"
        rows.append(("tok_s", place, _mean([x.output_tok_s for x in same])))
        rows.append(("itl_p99_ms", place, 1e3 * _mean([x.itl_p99_s for x in same])))
        rows.append(("ttft_p50_ms", place, 1e3 * _mean([x.ttft_p50_s for x in same])))
        lengths = [x.accept_length for x in same if x.accept_length is not None]
        rows.append(("accept_length", place, _mean(lengths)))
    rows += [("memory_gib", f".{name}", value / 2**30) for name, value in blocks[0].memory.items()]
    rows.append(("start_s", "", _mean([b.start_s for b in blocks])))
    for suite, answers in blocks[0].accuracy.items():
        rows.append(("accuracy", f".{suite}", _mean([float(right) for right in answers.values()])))
    rate = (blocks[0].forcing or {}).get("rate")
    rows.append(("mismatch_rate", "", math.nan if rate is None else float(rate)))
    return rows


def accept_lengths(block: BlockResult) -> dict[str, float]:
    """Return tokens a verify step by suite, the prefill's token left out."""
    return {suite: row["tokens"] / row["steps"] for suite, row in block.accept.items() if row["steps"]}


def time_split(blocks: Sequence[BlockResult], concurrency: int) -> dict[str, Any] | None:
    """Return where an arm's time goes at `concurrency`, in seconds an output token and seconds a verify step.

    `prompt`: up to the first token; `decode`: after it. A step is a verify step, or a token of plain decoding.
    """
    loads = [load for b in blocks if (load := b.load(concurrency)) is not None]
    suites = [s for load in loads for s in load.suites.values()]
    tokens = sum(s.tokens for s in suites)
    if not tokens:
        return None
    prompt, whole = math.fsum(s.ttft_s for s in suites), math.fsum(s.latency_s for s in suites)
    steps = sum(load.verify_steps or 0 for load in loads) or tokens - sum(s.requests for s in suites)
    decode = whole - prompt
    return {
        "prompt_s": prompt / tokens,
        "decode_s": decode / tokens,
        "step_s": decode / steps if steps else math.nan,
        "tokens_per_step": tokens / steps if steps else math.nan,
    }


def _speeds(blocks: Sequence[BlockResult], concurrency: int) -> dict[int, float]:
    loads = {b.key.round: b.load(concurrency) for b in blocks}
    return {r: load.output_tok_s for r, load in loads.items() if load is not None and load.output_tok_s > 0}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
