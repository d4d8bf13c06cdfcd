"""Measures a deployment's cost table on real servers, and held-out settings that predictions are checked against."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from specpilot_sglang.eval import provenance, suites
from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.files import write_whole
from specpilot_sglang.eval.nightly.answers import add_up
from specpilot_sglang.eval.parallel import run_all
from specpilot_sglang.eval.presets import ar_args, block_size, dflash_args
from specpilot_sglang.eval.prompts import Prompt, encode, load_tokenizer
from specpilot_sglang.eval.recording import greedy
from specpilot_sglang.eval.servers import Server
from specpilot_sglang.loop.cost import counted
from specpilot_sglang.loop.cost.machine import measure_rates
from specpilot_sglang.loop.cost.plan import Case, Observation, Plan
from specpilot_sglang.loop.cost.simulate import Request, loads_of, simulate
from specpilot_sglang.loop.cost.table import CostTable, Prefill, StepTime
from specpilot_sglang.loop.cost.work import work_of

_HISTOGRAM = "spec_correct_drafts_histogram"
_WARM_UP_TOKENS = 16
Say = Callable[[str], None]


@dataclass
class Measured:
    """What the servers gave so far."""

    points: list[StepTime] = field(default_factory=list)
    prefills: list[Prefill] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)


def measure(plan: Plan, logs: Path, say: Say) -> tuple[CostTable, list[Observation]]:
    """Start a server for plain decoding and one a block, in turn; return the table and every load.

    Raises:
        SpecPilotError: a server does not start or times nothing, or a request fails.
    """
    tokenizer = load_tokenizer(plan.model)
    measured = Measured()
    say("measuring the machine's rates")
    rates = measure_rates("cuda" if provenance.gpu_names() else "cpu", plan.dtype)
    for block in dict.fromkeys(case.block for case in plan.cases):
        cases = [case for case in plan.cases if case.block == block]
        name = f"block-{block}" if block else "plain"
        say(f"{name}: starting the server")
        with Server(_args(plan, block), name=name, log=logs / f"{name}.log", start_timeout_s=900.0) as server:
            _serve(server.client, plan, cases, tokenizer, measured, say)
        write_whole(logs / "measured.json", json.dumps(asdict(measured), indent=1) + "\n", fix="choose --out")
    fitted = [o for o in measured.observations if not o.case.held_out]
    table = CostTable(
        name=plan.name,
        block=block_size(plan.draft),
        ar=tuple(p for p in measured.points if p.width == 1),
        spec=tuple(p for p in measured.points if p.width > 1),
        prefill=tuple(merge(measured.prefills)),
        accept=_accept(fitted),
        work=work_of(plan.model, plan.draft, 4.0 if plan.dtype == "float32" else 2.0),
        rates=rates,
        labels=plan.labels,
        provenance=provenance.collect(None, plan=asdict(plan)),
    )
    return CostTable(**{**vars(table), "request_s": request_seconds(table, fitted)}), measured.observations


def _args(plan: Plan, block: int) -> list[str]:
    overlay = str(resources.files("specpilot_sglang.loop.cost") / "timing_overlay")
    most = max(case.concurrency for case in plan.cases)
    plugin = ["--speculative-plugin", "specpilot", "--specpilot-overlay", overlay, *plan.server_args]
    if not block:
        return [*ar_args(plan.model, dtype=plan.dtype, max_running=most), *plugin]
    args = dflash_args(plan.model, plan.draft, dtype=plan.dtype, max_running=most)
    return [*args, "--speculative-num-draft-tokens", str(block), *plugin]


def _serve(client: Client, plan: Plan, cases: Sequence[Case], tokenizer: Any, into: Measured, say: Say) -> None:
    warm = encode(suites.load(cases[0].suite)[-2:], tokenizer)
    for concurrency in sorted({case.concurrency for case in cases}):
        _load(client, (warm * concurrency)[:concurrency], concurrency, _WARM_UP_TOKENS)
    before = counted.hits_of(client.attestation())
    for held_out in (False, True):
        for case in (c for c in cases if c.held_out == held_out):
            say(f"{'held out, ' if held_out else ''}{case.suite}, {case.concurrency} in flight")
            client.flush_cache()
            count = max(plan.prompts, 2 * case.concurrency)
            prompts = encode(suites.load(case.suite, limit=count), tokenizer)
            seconds, requests, steps, counts = _load(client, prompts, case.concurrency, plan.max_new_tokens)
            into.observations.append(Observation(case, seconds, requests, steps, counts))
        if not held_out:
            grown = counted.difference(counted.hits_of(client.attestation()), before)
            if any(not c.held_out for c in cases):
                wanted = {c.concurrency for c in cases if not c.held_out}
                into.points += [p for p in counted.step_times(grown) if p.batch in wanted]
                into.prefills += counted.prefills(grown)


def _load(
    client: Client, prompts: Sequence[Prompt], concurrency: int, max_new_tokens: int
) -> tuple[float, tuple[Request, ...], int, tuple[int, ...]]:
    sampling = greedy(max_new_tokens, ignore_eos=True)
    begin = time.perf_counter()
    answers = run_all(lambda p: client.generate(input_ids=p.ids, sampling=sampling), prompts, concurrency)
    seconds = time.perf_counter() - begin
    requests = tuple(Request(len(p.ids), len(a.output_ids)) for p, a in zip(prompts, answers, strict=True))
    counts = add_up([a.meta.get(_HISTOGRAM) or () for a in answers])
    return seconds, requests, sum(a.verify_steps for a in answers), counts


def merge(rows: Sequence[Prefill]) -> list[Prefill]:
    """Return one entry a number of tokens, weighted by passes; drafting only from servers that draft."""
    found = []
    for tokens in sorted({r.tokens for r in rows}):
        same = [r for r in rows if r.tokens == tokens]
        passes = sum(r.passes for r in same)
        seconds = math.fsum(r.seconds * r.passes for r in same) / passes
        drafts = [r for r in same if r.draft_s > 0]
        draft = math.fsum(r.draft_s * r.passes for r in drafts) / sum(r.passes for r in drafts) if drafts else 0.0
        found.append(Prefill(tokens, passes, seconds, draft))
    return found


def _accept(observations: Sequence[Observation]) -> dict[str, dict[int, tuple[int, ...]]]:
    found: dict[str, dict[int, tuple[int, ...]]] = {}
    for o in observations:
        if o.counts:
            row = found.setdefault(o.case.suite, {})
            row[o.case.block] = add_up([row.get(o.case.block, ()), o.counts])
    return found


def request_seconds(table: CostTable, observations: Sequence[Observation]) -> float:
    """Return the median seconds that a request of a load without concurrency spends outside all passes and steps."""
    loads = loads_of(table)
    rest = []
    for o in observations:
        points = {(p.batch, p.width): p.step_s for p in (*table.ar, *table.spec)}
        step = points.get((1, o.case.block or 1))
        if o.case.concurrency != 1 or step is None:
            continue
        inside = simulate(
            o.requests,
            1,
            step=lambda n, step=step: step,  # type: ignore[misc]
            tokens_per_step=o.accept_length if o.case.block else 1.0,
            prefill=lambda tokens: loads.prompt.at(1, tokens),
        )
        rest.append((o.seconds - inside) / len(o.requests))
    return max(0.0, statistics.median(rest)) if rest else 0.0
