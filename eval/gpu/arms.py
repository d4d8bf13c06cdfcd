"""One server of a plan from start to result, and several of them side by side."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from filelock import FileLock

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.gpu.phases import memory_lines, milestones
from specpilot_sglang.eval.gpu.plan import Plan, ServerPlan
from specpilot_sglang.eval.gpu.records import record_answers
from specpilot_sglang.eval.gpu.speed import run_load
from specpilot_sglang.eval.gpu.stacks import StackSampler
from specpilot_sglang.eval.servers import Server

logger = logging.getLogger(__name__)
LOG_TAIL = 400_000  # characters of a server log that are kept
PROMPT_SEED = 20261130
STAGGER_S = 2.0  # between starts of one group, so that free ports are not picked twice
_FAILURES = (SpecPilotError, httpx.HTTPError, ValueError, KeyboardInterrupt)


class ServerArm:
    """A planned server with its log, stack samples and result; failures go into the result, never up."""

    def __init__(self, plan: Plan, asked: ServerPlan, out: Path) -> None:
        self.plan, self.asked, self.out = plan, asked, out
        self.log = out / f"{asked.name}.log"
        self.server = Server(
            plan.arguments(asked),
            env={"SGLANG_LOG_MS": "1", **plan.env, **asked.env},
            log=self.log,
            start_timeout_s=asked.start_timeout_s,
            name=asked.name,
        )
        self.prompts = random_prompts(asked.input_len, plan.vocab_size)
        self.sampler = StackSampler(lambda: self.server.pid, plan.stack_every_s)
        facts = {"name": asked.name, "labels": asked.labels, "group": asked.group}
        self.result: dict[str, Any] = {**facts, "command": self.server.command, "env": asked.env}

    def start(self) -> None:
        """Start the server, sampling its stacks meanwhile."""
        self.sampler.start()
        try:
            self.server.start()
            self.result["start_s"] = self.server.start_s
        except _FAILURES as error:
            self.fail(error)
        finally:
            self.sampler.stop()

    def ask(self, turn: FileLock) -> None:
        """Run the loads, record answers to real prompts and read the HTTP paths, if the server started.

        `turn` is held meanwhile: measurements of other processes on the same GPU wait for it.
        """
        if "error" in self.result:
            return
        begin = time.monotonic()
        try:
            with turn:
                self._ask()
        except _FAILURES as error:
            self.fail(error)
        logger.info("%s: measured in %.0f s", self.asked.name, time.monotonic() - begin)

    def stop(self) -> None:
        """Stop the server and complete the result from its log."""
        try:
            self.server.stop()
        except SpecPilotError as error:
            self.fail(error)
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        self.log.write_text(text[-LOG_TAIL:], encoding="utf-8")
        self.result["milestones"], self.result["memory"] = milestones(text), memory_lines(text)
        sampler = self.sampler
        self.result["stacks"] = {"note": sampler.note, "summary": sampler.summary(), "samples": sampler.samples}

    def fail(self, error: BaseException) -> None:
        """Put an error into the result; the first one stays."""
        self.result.setdefault("error", f"{type(error).__name__}: {error}")
        logger.error("%s: %s: %s", self.asked.name, type(error).__name__, error)

    def _ask(self) -> None:
        asked, url, prompts = self.asked, self.server.url, self.prompts
        self.result["loads"] = []
        for load in asked.loads:
            speeds = run_load(url, prompts, load.concurrency, load.output_len, load.repeats, asked.load_timeout_s)
            speed, accept = speeds["tok_s"], speeds["accept_length"]
            logger.info("%s: c=%d %s tok/s, accept length %s", asked.name, load.concurrency, speed, accept)
            self.result["loads"].append(speeds)
        if asked.records is not None:
            record = record_answers(self.server.client, asked.records, self.plan.tokenizer, self.out, asked.name)
            self.result["records"] = record
        self.read_paths()

    def read_paths(self) -> None:
        """Keep the answers of the asked HTTP paths; call it last, so that counters have counted."""
        self.result["gets"] = answers(self.server.url, self.asked.gets)


def measure_group(
    plan: Plan, members: Sequence[ServerPlan], out: Path, turn: FileLock, rounds: int = 0
) -> list[dict[str, Any]]:
    """Start all members together, measure them one after the other, stop them all; return their results.

    With `rounds`, they take turns instead: every load runs that often on each, back and forth.
    """
    arms = [ServerArm(plan, asked, out) for asked in members]

    def start(place: int) -> None:
        time.sleep(place * STAGGER_S)
        arms[place].start()

    # The threads must outlive the measurement: a server gets SIGTERM when the thread that started it ends.
    with ThreadPoolExecutor(len(arms)) as pool:
        try:
            list(pool.map(start, range(len(arms))))
            if rounds:
                take_turns([arm for arm in arms if "error" not in arm.result], rounds)
            else:
                for arm in arms:
                    arm.ask(turn)
        except KeyboardInterrupt as error:
            for arm in arms:
                arm.fail(error)
                arm.server.stop()  # frees the threads that still wait for a start
        finally:
            list(pool.map(ServerArm.stop, arms))
    return [arm.result for arm in arms]


def take_turns(arms: Sequence[ServerArm], rounds: int) -> None:
    """Measure arms that are up in alternation, and compare their answers; a failure ends up in the arm's result."""
    from specpilot_sglang.eval.gpu.turns import compare, measure_load

    for load in arms[0].asked.loads if arms else ():
        measure_load(arms, load, rounds)
    compare(arms)
    for arm in arms:
        arm.read_paths()


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
        except (httpx.HTTPError, json.JSONDecodeError) as error:
            kept[path] = f"error: {error}"
    return kept
