"""Answers to real prompts on a GPU server: speed, accept length, and equality with another server's answers."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specpilot_sglang.eval import suites
from specpilot_sglang.eval.acceptance import by_suite
from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.forcing import force
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.gpu.plan import RecordPlan
from specpilot_sglang.eval.prompts import Prompt, encode, load_tokenizer
from specpilot_sglang.eval.recording import greedy, record
from specpilot_sglang.eval.records import Run, load_run

logger = logging.getLogger(__name__)


def run_file(out: Path, server: str, concurrency: int) -> Path:
    """Return where the answers of `server` at this concurrency are kept."""
    return out / f"{server}-c{concurrency}.jsonl"


def record_answers(client: Client, plan: RecordPlan, tokenizer: str, out: Path, name: str) -> dict[str, Any]:
    """Answer the plan's prompts at each concurrency, save the runs, and force the reference when one is named.

    Speeds are generated tokens over wall seconds of the whole run, prefills included, after one unmeasured round
    that also fills the radix cache: a run measures decoding more than prefilling.
    """
    prompts = _prompts(plan, tokenizer)
    sampling = greedy(plan.max_new_tokens)
    result: dict[str, Any] = {"prompts": len(prompts), "runs": []}
    record(client, prompts, sampling, concurrency=max(plan.concurrency))
    for concurrency in plan.concurrency:
        # Kernels are compiled when a number of requests is first met; its graphs and its shapes are warm after this.
        record(client, prompts[:concurrency], sampling, concurrency=concurrency)
        begin = time.perf_counter()
        run = record(client, prompts, sampling, concurrency=concurrency)
        wall_s = time.perf_counter() - begin
        run.save(run_file(out, name, concurrency))
        result["runs"].append(_figures(run, concurrency, wall_s))
        logger.info("%s: c=%d %.1f tok/s on real prompts", name, concurrency, result["runs"][-1]["tok_s"])
    if plan.force is not None:
        reference = load_run(run_file(out, plan.force, plan.concurrency[0]))
        own = load_run(run_file(out, name, plan.concurrency[0]))
        verdicts = force(reference, client, concurrency=8, first_pass={r.id: r for r in own.requests})
        result["forcing"] = {"reference": plan.force, **ForcingReport(verdicts).to_json()}
        result["equal_outputs"] = [_equal(reference, load_run(run_file(out, name, c))) for c in plan.concurrency]
    return result


def _prompts(plan: RecordPlan, tokenizer: str) -> list[Prompt]:
    items = [item for suite, count in plan.suites.items() for item in suites.load(suite, limit=count)]
    return encode(items, load_tokenizer(tokenizer))


def _figures(run: Run, concurrency: int, wall_s: float) -> dict[str, Any]:
    tokens: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for request in run.requests:
        tokens[request.suite] = tokens.get(request.suite, 0) + len(request.output_ids)
        seconds[request.suite] = seconds.get(request.suite, 0.0) + request.wall_s
    return {
        "concurrency": concurrency,
        "tokens": sum(tokens.values()),
        "wall_s": wall_s,
        "tok_s": sum(tokens.values()) / wall_s,
        "request_tok_s_by_suite": {suite: tokens[suite] / seconds[suite] for suite in tokens},
        "accept_length": [asdict(part) for part in by_suite(run.requests)],
        "failed": [request.error for request in run.requests if request.error],
    }


def _equal(reference: Run, run: Run) -> dict[str, int]:
    pairs = [(a.output_ids, b.output_ids) for a, b in zip(reference.requests, run.requests, strict=True)]
    return {"requests": len(pairs), "equal": sum(a == b for a, b in pairs)}
