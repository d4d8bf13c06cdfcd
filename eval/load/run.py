"""Runs one workload against a running server: guards, cache flush, the benchmark client, guards again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specpilot_sglang.eval import provenance
from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.load import command, output, turns
from specpilot_sglang.eval.load.client_source import client_problems
from specpilot_sglang.eval.load.gpu import GpuWatch
from specpilot_sglang.eval.load.guards import RunRefusedError, hits_grown
from specpilot_sglang.eval.load.observe import Observation, observe, variables_that_matter
from specpilot_sglang.eval.load.output import ClientOutput
from specpilot_sglang.eval.load.process import OutsideClock, run_client
from specpilot_sglang.eval.load.results import LoadResult
from specpilot_sglang.eval.load.workload import Workload, draw
from specpilot_sglang.eval.parallel import run_all
from specpilot_sglang.eval.prompts import encode, load_tokenizer
from specpilot_sglang.eval.recording import greedy
from specpilot_sglang.eval.servers import Server

__all__ = ["RunRefusedError", "Workload", "draw", "run_load", "run_pair"]

_WARM_UP_TOKENS = 32


def run_load(
    server: Server, workload: Workload, out: Path, *, recorded: bool = True, timeout_s: float = 3600.0
) -> LoadResult:
    """Send `workload` to `server` through `python -m sglang.benchmark.serving` in a process of its own.

    Args:
        server: a started server.
        workload: what to send.
        out: folder for `load.json` (the result), `dataset.jsonl`, `client.jsonl` and `client.log`.
        recorded: refuse the run, before and after it, when the server or the client is not what the result would
            claim; False keeps the reasons in `environment["refused"]` instead.
        timeout_s: how long the client may take.

    Raises:
        RunRefusedError: a recorded run found a reason; what was measured is kept as `refused.json`.
        SpecPilotError: the client failed, or the server went away.
    """
    begun = _begin(server, workload, out, recorded)
    with GpuWatch() as gpus:
        clock = run_client(begun.line, command.client_environment(), out / "client.log", timeout_s)
    return _finish(begun, clock, gpus.summary())


def run_pair(
    servers: Sequence[Server],
    workload: Workload,
    outs: Sequence[Path],
    *,
    recorded: bool = True,
    timeout_s: float = 3600.0,
    watch: Callable[[Server], None] = lambda server: None,
) -> list[LoadResult]:
    """Send `workload` to two servers in turns, request by request; otherwise as `run_load`.

    Args:
        servers: both, started.
        workload: one request at a time.
        outs: a folder each.
        recorded: as in `run_load`.
        timeout_s: how long the clients may take.
        watch: hears of the server that is looked at next, so that a refusal can be told whose it is.
    """
    begun = []
    for server, out in zip(servers, outs, strict=True):
        watch(server)
        begun.append(_begin(server, workload, out, recorded))
    clients = [turns.Client(b.server.name, list(b.line), b.out) for b in begun]
    with GpuWatch() as gpus:
        clocks = turns.run_in_turns(clients, workload, timeout_s, lambda index: watch(servers[index]))
    results = []
    for started, clock in zip(begun, clocks, strict=True):
        watch(started.server)
        results.append(_finish(started, clock, gpus.summary(), in_turns=True))
    return results


@dataclass(frozen=True)
class _Begun:
    """A load whose client was not run yet."""

    server: Server
    workload: Workload
    out: Path
    recorded: bool
    tokenizer: Any
    hashes: dict[str, str]
    changed: list[str]
    before: Observation
    load: float
    line: tuple[str, ...]
    outside_s: float


@dataclass(frozen=True)
class _Measured:
    """What was seen around the client's run."""

    before: Observation
    after: Observation
    clock: OutsideClock
    gpu: dict[str, Any]
    load_average: tuple[float, float]
    line: tuple[str, ...]


def _begin(server: Server, workload: Workload, out: Path, recorded: bool) -> _Begun:
    workload.check()
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    tokenizer = load_tokenizer(server.client.model_info()["tokenizer_path"])
    hashes, changed = client_problems()
    _refuse("before", [*changed, *observe(server).problems], recorded, server.name)
    for name in ("client.jsonl", "load.json", "refused.json"):
        (out / name).unlink(missing_ok=True)  # the client appends; an older result must not pass for this one
    warm_up(server.client, workload.concurrency)
    command.write_dataset(workload, out / "dataset.jsonl")
    before, load = observe(server), provenance.load_average()
    line = _command(before.info, server.url, workload, out)
    outside_s = time.monotonic() - began
    return _Begun(server, workload, out, recorded, tokenizer, hashes, changed, before, load, line, outside_s)


def _finish(begun: _Begun, clock: OutsideClock, gpu: dict[str, Any], *, in_turns: bool = False) -> LoadResult:
    server, workload, out, began = begun.server, begun.workload, begun.out, time.monotonic()
    loads = (begun.load, provenance.load_average())
    measured = _Measured(begun.before, observe(server), clock, gpu, loads, begun.line)
    seen = output.read_output(out / "client.jsonl", workload)
    counts = [len(begun.tokenizer(s.text, add_special_tokens=False)["input_ids"]) for s in seen.samples]
    sent = [p.ids for p in encode(workload.items, begun.tokenizer, thinking=workload.thinking)]
    problems = [
        *dict.fromkeys([*begun.changed, *client_problems()[1], *measured.before.problems, *measured.after.problems]),
        *clock.problems(seen.duration_s, sum(len(s.itl_s) + 1 for s in seen.samples)),
        *output.sample_problems(seen, workload),
        *output.prompt_problems(seen, sent),
        *output.token_problems(seen, counts),
    ]
    about = {"refused": problems, "text_tokens": counts, "cached_tokens": list(seen.cached_tokens)}
    if in_turns:
        about |= {"in_turns": True, "client_duration_s": seen.duration_s}
        seen = replace(seen, duration_s=sum(sample.latency_s for sample in seen.samples))
    environment = {**_about(server, workload, measured, begun.hashes), **about}
    # Everything but the client's life: a pair's clients live at the same time, so no clock around both can tell.
    environment["outside_s"] = begun.outside_s + time.monotonic() - began + clock.wall_s
    result = _result(seen, measured, environment, workload)
    result.save(out / ("refused.json" if begun.recorded and problems else "load.json"))
    _refuse("after", problems, begun.recorded, server.name)
    return result


def warm_up(client: Client, concurrency: int) -> None:
    """Answer a few prompts of no suite at the concurrency of the run, then flush the cache."""
    texts = [f"Warm-up {n}: list {n + 3} things that a library holds besides books." for n in range(concurrency)]
    sampling = greedy(_WARM_UP_TOKENS, ignore_eos=True)
    run_all(lambda text: client.generate(text=text, sampling=sampling), texts, concurrency)
    client.flush_cache()


def _command(info: dict[str, Any], url: str, workload: Workload, out: Path) -> tuple[str, ...]:
    model = str(info["model_path"])
    served = str(info.get("served_model_name") or model)
    tokenizer = str(info.get("tokenizer_path") or model)
    return tuple(command.command_line(url, model, served, tokenizer, workload, out.resolve()))


def _about(server: Server, workload: Workload, measured: _Measured, hashes: dict[str, str]) -> dict[str, Any]:
    before, after, clock = measured.before, measured.after, measured.clock
    return {
        "provenance": provenance.collect(after.attestation, seed=workload.seed, workload=workload.about()),
        "server": {"name": server.name, "command": server.command, "start_s": server.start_s},
        "server_env": variables_that_matter(after.env),
        "hits_grown": hits_grown(before.attestation, after.attestation),
        "gpu": measured.gpu,
        "load_average": list(measured.load_average),
        "client": {"files_sha256": hashes, "wall_s": clock.wall_s, "window_s": clock.window_s},
    }


def _result(seen: ClientOutput, measured: _Measured, environment: dict[str, Any], workload: Workload) -> LoadResult:
    steps, length, source = _acceptance(seen, measured.before, measured.after)
    return LoadResult(
        samples=seen.samples,
        duration_s=seen.duration_s,
        concurrency=workload.concurrency,
        verify_steps=steps,
        accept_length=length,
        server_before=measured.before.info,
        server_after=measured.after.info,
        attestation_before=measured.before.attestation,
        attestation_after=measured.after.attestation,
        environment={**environment, "verify_steps_from": source},
        command=measured.line,
    )


def _acceptance(seen: ClientOutput, before: Observation, after: Observation) -> tuple[int | None, float | None, str]:
    """Return verify steps, tokens a step (prefill's token left out) and where they come from."""
    good = [s for s in seen.samples if not s.error]
    tokens = sum(s.output_tokens for s in good) - len(good)
    if after.verify_calls:
        steps = after.verify_calls - (before.verify_calls or 0)
        return (steps, tokens / steps, "counter") if steps > 0 else (None, None, "counter")
    if seen.accept_length:
        return round(tokens / seen.accept_length), seen.accept_length, "SGLang's running average"
    return None, None, "none"


def _refuse(when: str, reasons: Sequence[str], recorded: bool, name: str) -> None:
    if recorded and reasons:
        raise RunRefusedError(when, reasons, where=name)
