"""The whole loop with its real parts: tuner in the jail, gate, the judge's whole trial, on toy servers."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specpilot_sglang.eval.ab.durable import write_json
from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.load import run as load_run
from specpilot_sglang.loop.controller import incumbent, pins, trial
from specpilot_sglang.loop.controller.context import Context
from specpilot_sglang.loop.controller.loop import run_loop
from specpilot_sglang.loop.controller.replay import replay
from specpilot_sglang.loop.controller.settings import LoopSettings
from specpilot_sglang.loop.controller.state import State
from specpilot_sglang.loop.executors import JobStatus
from specpilot_sglang.loop.journal import Journal
from specpilot_sglang.loop.judge import answers
from specpilot_sglang.loop.memory import Memory
from specpilot_sglang.overlay import load_overlay

JUDGE_TESTS = Path(__file__).parents[1] / "judge"


def borrowed(name):
    """A module of the judge's tests, by its file: a second `conftest` must not be found by name."""
    if str(JUDGE_TESTS) not in sys.path:
        sys.path.append(str(JUDGE_TESTS))
    spec = importlib.util.spec_from_file_location(f"judge_tests_{name}", JUDGE_TESTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Inline:
    """Runs a job in this process, where its servers can be replaced."""

    name: str = "local"
    seen: list = field(default_factory=list)

    def submit(self, job):
        self.seen.append(job.id)
        write_json(job.folder / "result.json", {"value": trial.run_trial(**job.payload), "attempt": job.attempt})

    def poll(self, job):
        return JobStatus.ENDED

    def cancel(self, job):
        pass

    def close(self):
        pass


@pytest.fixture
def toys(monkeypatch, smollm2):
    """Servers whose verify step takes less time with blocks of three and more."""
    toy_server, bench, court = borrowed("toy_server"), borrowed("bench"), borrowed("conftest")

    class ByBlock(toy_server.ToyServer):
        def __init__(self, arm, log, tokenizer):
            super().__init__(arm, log, tokenizer)
            if arm.overlay is not None:
                block = load_overlay(arm.overlay).overlay.server_args.speculative_num_draft_tokens
                # Long steps, so that what they take is not lost in what a busy machine adds.
                self.step_s = 0.06 if block == 2 else 0.03

    def arms(settings, first, second):
        plain = ("--dtype", "bfloat16")
        made = [Arm(name, plain, overlay=str(f)) for name, f in (("incumbent", first), ("candidate", second))]
        return made[0], made[1], Arm("reference", plain)

    monkeypatch.setattr(judge_pins := pins.judge_pins, "PINNED", ("errors.py",))
    monkeypatch.setattr(pins, "_OWN", ())
    monkeypatch.setattr(judge_pins, "replaced_in_memory", list)
    monkeypatch.setattr(trial, "arms", arms)
    monkeypatch.setattr(trial, "load", lambda suite: list(court.POOL))
    monkeypatch.setattr(trial, "jailed_server", lambda arm, log, hidden: ByBlock(arm, log, smollm2))
    monkeypatch.setattr(load_run, "run_client", bench.LightClient())
    # The light client is no file of SGLang's, and looking through all of those takes longer than a toy's load.
    monkeypatch.setattr(load_run, "client_problems", lambda: ({}, []))
    monkeypatch.setattr(judge_pins.client_source, "client_problems", lambda: ({}, []))
    for module in (load_run, answers):
        monkeypatch.setattr(module, "load_tokenizer", toy_server.tokenizer_of)
    return court


@pytest.mark.long
def test_the_tuner_finds_what_was_detuned_and_the_judge_promotes_it(toys, tmp_path, jail):
    overlay = tmp_path / "source" / "toy"
    overlay.mkdir(parents=True)
    (overlay / "overlay.yaml").write_text("name: toy\nserver_args:\n  speculative_num_draft_tokens: 2\n")
    (tmp_path / "noise.json").write_text(json.dumps(toys.NOISE.to_json()))
    settings = LoopSettings.model_validate_json(
        json.dumps(
            {
                **{"overlay": str(overlay), "candidates": 1, "noise": str(tmp_path / "noise.json"), "canary": None},
                **{"answers": 70, "load": {"requests": 4, "max_new_tokens": 16, "concurrency": 4}},
            }
        )
    )
    state = State(tmp_path / "state")
    context = Context(settings, state, Journal(state.root), Memory(state.memory), Inline())
    summary = run_loop(context)
    (verdict,) = context.journal.jobs("trial")
    assert summary.statuses == {"accepted": 1}, verdict.result
    assert verdict.result["confirmed"] > 0.2
    published = load_overlay(str(state.published / "toy"))
    assert published.overlay.server_args.speculative_num_draft_tokens > 2
    assert incumbent.problems(state, published.folder) == []
    assert [row.problem for row in replay(state, context.journal)] == ["", "", ""]
    sealed = next((state.trial(verdict.key) / "evidence").rglob("load.json"))
    sealed.write_text(sealed.read_text() + " ")
    assert "tampered" in next(row.problem for row in replay(state, context.journal) if row.what == verdict.key)
