"""Measures a deployment's cost table on real servers, and held-out settings that predictions are checked against."""

from __future__ import annotations

import contextlib
import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from specpilot_sglang.eval import provenance, suites
from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.cores import share_cores
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
    """Start a server for plain decoding and one a block, in turn or together; return the table and every load.

    Raises:
        SpecPilotError: a server does not start or times nothing, or a request fails.
    """
    tokenizer = load_tokenizer(plan.model)
    say("measuring the machine's rates")
    rates = measure_rates("cuda" if provenance.gpu_names() else "cpu", plan.dtype)
    measured = Measured()
    blocks = list(dict.fromkeys(case.block for case in plan.cases))
    for group in [blocks] if plan.together else [[block] for block in blocks]:
        with contextlib.ExitStack() as running:
            servers = {block: _server(plan, block, logs) for block in group}
            for server in servers.values():
                running.callback(server.stop)
                server.launch()
            for server in servers.values():
                say(f"{server.name}: starting the server")
                server.start()
            if plan.together and not provenance.gpu_names():
                share_cores(servers.values())
            _serve({block: server.client for block, server in servers.items()}, plan, tokenizer, measured, say)
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


def _server(plan: Plan, block: int, logs: Path) -> Server:
    name = f"block-{block}" if block else "plain"
    return Server(_args(plan, block), name=name, log=logs / f"{name}.log", start_timeout_s=900.0)


def _args(plan: Plan, block: int) -> list[str]:
    overlay = str(resources.files("specpilot_sglang.loop.cost") / "timing_overlay")
    most = max(case.concurrency for case in plan.cases)
    plugin = ["--speculative-plugin", "specpilot", "--specpilot-overlay", overlay, *plan.server_args]
    if not block:
        return [*ar_args(plan.model, dtype=plan.dtype, max_running=most), *plugin]
    args = dflash_args(plan.model, plan.draft, dtype=plan.dtype, max_running=most)
    return [*args, "--speculative-num-draft-tokens", str(block), *plugin]


def _serve(clients: Mapping[int, Client], plan: Plan, tokenizer: Any, into: Measured, say: Say) -> None:
    """Run all loads of these servers in every round, in an order that changes; counters grow by fitted loads only."""
    cases = [case for case in plan.cases if case.block in clients]
    warm = encode(suites.load(cases[0].suite)[-2:], tokenizer)
    for block, concurrency in dict.fromkeys((case.block, case.concurrency) for case in cases):
        _load(clients[block], (warm * concurrency)[:concurrency], concurrency, _WARM_UP_TOKENS)
    grown: dict[int, dict[str, int]] = {block: {} for block in clients}
    for number in range(plan.rounds):
        for case in random.Random(number).sample(cases, len(cases)):
            say(f"round {number + 1} of {plan.rounds}: {case}")
            client = clients[case.block]
            client.flush_cache()
            before = counted.hits_of(client.attestation())
            into.observations.append(_observe(client, plan, case, number, tokenizer))
            if not case.held_out:
                step = counted.difference(counted.hits_of(client.attestation()), before)
                grown[case.block] = counted.total(grown[case.block], step)
    for block, hits in grown.items():
        wanted = {case.concurrency for case in cases if case.block == block and not case.held_out}
        into.points += [point for point in counted.step_times(hits) if point.batch in wanted]
        into.prefills += counted.prefills(hits)


def _observe(client: Client, plan: Plan, case: Case, number: int, tokenizer: Any) -> Observation:
    count = max(plan.prompts, 2 * case.concurrency)
    prompts = encode(suites.load(case.suite, limit=(number + 1) * count)[number * count :], tokenizer)
    seconds, requests, steps, counts = _load(client, prompts, case.concurrency, plan.max_new_tokens)
    return Observation(case, seconds, requests, steps, counts)


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
    """Return the mean seconds that a request of a load without concurrency spends outside all passes and steps.

    A mean as the step times are: a median would take a host's slow rounds for time outside of the steps.
    """
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
        rest.append((o.seconds - inside, len(o.requests)))
    return max(0.0, math.fsum(s for s, _ in rest) / sum(n for _, n in rest)) if rest else 0.0
