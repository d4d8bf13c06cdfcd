"""Measures one block on a real server: start, timed loads, scored answers, token forcing, memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from specpilot_sglang.eval import scorers, suites
from specpilot_sglang.eval.demo.outcome import attestation_problems
from specpilot_sglang.eval.load.results import LoadResult
from specpilot_sglang.eval.load.run import Workload, run_load
from specpilot_sglang.eval.nightly.answers import Answers, forced, record_answers
from specpilot_sglang.eval.nightly.block import BlockResult, LoadFigures, figures_of
from specpilot_sglang.eval.nightly.config import Config
from specpilot_sglang.eval.nightly.plan import arm_of
from specpilot_sglang.eval.nightly.run import BlockSpec
from specpilot_sglang.eval.prompts import encode, load_tokenizer
from specpilot_sglang.eval.recording import greedy
from specpilot_sglang.eval.servers import Server
from specpilot_sglang.eval.suites import Item

REFERENCE_FILE = "answers.jsonl"
#: Parts of a load's environment that stay in the load's own file.
_BULKY = ("cached_tokens", "text_tokens", "client")

#: Told what a block is doing.
Say = Callable[[str], None]


@dataclass(frozen=True)
class ServerRunner:
    """The runner that starts servers; see `run.Runner`."""

    say: Say

    def __call__(self, spec: BlockSpec, folder: Path) -> BlockResult:
        """Measure one block."""
        arm = arm_of(spec.deployment, spec.pair, spec.key.arm)
        self.say("starting the server")
        log = folder / "server.log"
        with arm.server(log=log, start_timeout_s=spec.config.start_timeout_s) as server:
            loads = [self._load(server, spec.config, c, folder) for c in spec.config.load.concurrency]
            memory = _memory(server)  # before the checks: they use other batch sizes
            scored = self._accuracy(server, spec, folder)
            answers = self._answers(server, spec, folder)
            attestation = server.client.attestation()
            self.say("stopping the server")
        return BlockResult(
            key=spec.key,
            command=tuple(server.command),
            start_s=server.start_s,
            loads=tuple(figures for figures, _ in loads),
            memory=memory,
            accuracy=scored,
            forcing=answers.forcing,
            accept=answers.accept,
            histogram=answers.histogram,
            reference=REFERENCE_FILE if answers.kept else "",
            problems=tuple(attestation_problems(attestation) if arm.plugin else ()),
            attestation=attestation,
            environment={k: v for k, v in loads[0][1].environment.items() if k not in _BULKY},
        )

    def _load(self, server: Server, config: Config, concurrency: int, folder: Path) -> tuple[LoadFigures, LoadResult]:
        self.say(f"timed load, {concurrency} in flight")
        load = config.load
        items = tuple(chosen(load.suites))
        workload = Workload(items, load.max_new_tokens, concurrency, ignore_eos=load.ignore_eos)
        result = run_load(server, workload, folder / f"load-{concurrency}")
        return figures_of(result), result

    def _accuracy(self, server: Server, spec: BlockSpec, folder: Path) -> dict[str, dict[str, bool]]:
        wanted = spec.config.accuracy
        if wanted is None or not spec.first:
            return {}
        self.say("scored answers")
        items = suites.instructed(chosen(wanted.suites))
        workload = Workload(tuple(items), wanted.max_new_tokens, wanted.concurrency)
        result = run_load(server, workload, folder / "accuracy")
        scores = scorers.score_all(items, {s.id: s.text for s in result.good})
        return {suite: {s.id: s.correct for s in scores if s.suite == suite} for suite in wanted.suites}

    def _answers(self, server: Server, spec: BlockSpec, folder: Path) -> Answers:
        wanted = spec.config.forcing
        if wanted is None or not spec.first:
            return Answers()
        self.say("answers" if spec.key.arm == "ar" else "answers and token forcing")
        server.client.flush_cache()
        prompts = encode(chosen(wanted.suites), load_tokenizer(spec.pair.model))
        answers = record_answers(server.client, prompts, greedy(wanted.max_new_tokens), wanted.concurrency)
        if spec.key.arm == "ar":
            return answers.keep(folder / REFERENCE_FILE)
        server.client.flush_cache()  # so that forcing fills the cache by its own path
        return forced(answers, server.client, spec.reference, wanted.concurrency)


def chosen(wanted: dict[str, int]) -> list[Item]:
    """Return the first items of every suite."""
    return [item for name, count in wanted.items() for item in suites.load(name, limit=count)]


def _memory(server: Server) -> dict[str, float]:
    """Return resident bytes of all the server's processes, and what the server says of its device memory."""
    resident = 0.0
    for process in server.processes():
        with suppress(psutil.Error):
            resident += process.memory_info().rss
    states = server.server_info().get("internal_states") or [{}]
    usage: dict[str, Any] = states[0].get("memory_usage") or {}
    graphs = usage.get("graph")
    values = {"weights": usage.get("weight"), "kv_cache": usage.get("kvcache")}
    values["graphs"] = sum(graphs.values()) if isinstance(graphs, dict) else graphs
    found = {name: float(value) * 2**30 for name, value in values.items() if isinstance(value, int | float)}
    return {"rss": resident, **found}
