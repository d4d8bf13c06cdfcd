"""Run a measurement plan: `python -m specpilot_sglang.eval.gpu.measure PLAN --out DIR [--set NAME=VALUE ...]`.

Starts the plan's servers one after the other; for each it keeps where the start-up time went, stacks sampled
meanwhile, memory lines, decode speed, accept length, kept outputs and the answers of a few HTTP paths.
`DIR/results.json` is rewritten after every server, so that a run cut short keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.gpu.phases import memory_lines, milestones
from specpilot_sglang.eval.gpu.plan import Plan, ServerPlan, load_plan
from specpilot_sglang.eval.gpu.records import record_answers
from specpilot_sglang.eval.gpu.speed import run_load
from specpilot_sglang.eval.gpu.stacks import StackSampler
from specpilot_sglang.eval.servers import Server

logger = logging.getLogger(__name__)
LOG_TAIL = 400_000  # characters of a server log that are kept
PROMPT_SEED = 20261130


def random_prompts(input_len: int, vocab_size: int) -> list[list[int]]:
    """Return 32 different prompts of random token ids, the same at every call."""
    rng = random.Random(PROMPT_SEED)
    return [[rng.randrange(10, vocab_size) for _ in range(input_len)] for _ in range(32)]


def answers(url: str, paths: list[str]) -> dict[str, Any]:
    """Return the answer of each path: decoded JSON, text for the rest, or the error's text."""
    kept: dict[str, Any] = {}
    for path in paths:
        try:
            response = httpx.get(url + path, timeout=30.0)
            is_json = "json" in response.headers.get("content-type", "")
            kept[path] = response.json() if is_json else response.text[:60_000]
        except (httpx.HTTPError, ValueError) as error:
            kept[path] = f"error: {error}"
    return kept


def questions(server: Server, plan: Plan, asked: ServerPlan, out: Path) -> dict[str, Any]:
    """Run the loads, record answers to real prompts and read the HTTP paths of a started server."""
    prompts = random_prompts(asked.input_len, plan.vocab_size)
    result: dict[str, Any] = {"loads": []}
    for load in asked.loads:
        speeds = run_load(
            server.url, prompts, load.concurrency, load.output_len, load.repeats, timeout_s=asked.load_timeout_s
        )
        logger.info(
            "%s: c=%d %s tok/s, accept %s", asked.name, load.concurrency, speeds["tok_s"], speeds["accept_length"]
        )
        result["loads"].append(speeds)
    if asked.records is not None:
        result["records"] = record_answers(server.client, asked.records, plan.tokenizer, out, asked.name)
    result["gets"] = answers(server.url, asked.gets)
    return result


def measure_server(plan: Plan, server_plan: ServerPlan, out: Path) -> dict[str, Any]:
    """Start one server, measure it, stop it; a failure or an interruption is part of the result, not an exception."""
    log = out / f"{server_plan.name}.log"
    server = Server(
        plan.arguments(server_plan),
        env={"SGLANG_LOG_MS": "1", **plan.env, **server_plan.env},
        log=log,
        start_timeout_s=server_plan.start_timeout_s,
        name=server_plan.name,
    )
    result: dict[str, Any] = {
        "name": server_plan.name, "labels": server_plan.labels, "command": server.command, "env": server_plan.env,
    }  # fmt: skip
    sampler = StackSampler(lambda: server.pid, plan.stack_every_s)
    sampler.start()
    try:
        server.start()
        sampler.stop()
        result["start_s"] = server.start_s
        result.update(questions(server, plan, server_plan, out))
    except (SpecPilotError, httpx.HTTPError, ValueError, KeyboardInterrupt) as error:
        result["error"] = f"{type(error).__name__}: {error}"
        logger.error("%s: %s", server_plan.name, result["error"])
    finally:
        sampler.stop()
        server.stop()
    text = log.read_text(encoding="utf-8", errors="replace")
    log.write_text(text[-LOG_TAIL:], encoding="utf-8")
    result["milestones"], result["memory"] = milestones(text), memory_lines(text)
    result["stacks"] = {"note": sampler.note, "summary": sampler.summary(), "samples": sampler.samples}
    return result


def run_plan(plan: Plan, out: Path, only: list[str]) -> list[dict[str, Any]]:
    """Measure the plan's servers (or those named in `only`) and write `out/results.json` after each."""
    out.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for server_plan in plan.servers:
        if only and server_plan.name not in only:
            continue
        begin = time.monotonic()
        results.append(measure_server(plan, server_plan, out))
        logger.info("%s took %.0f s in all", server_plan.name, time.monotonic() - begin)
        (out / "results.json").write_text(json.dumps(results, indent=1, default=str), encoding="utf-8")
    return results


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # SIGTERM ends like Ctrl-C: the server is stopped and its result so far is written


def main() -> None:
    """Parse the command line and run the plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="value of ${NAME} in the plan")
    parser.add_argument("--only", action="append", default=[], metavar="SERVER", help="measure these servers alone")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    run_plan(load_plan(args.plan, dict(pair.split("=", 1) for pair in args.set)), args.out, args.only)


if __name__ == "__main__":
    main()
