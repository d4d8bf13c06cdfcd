"""`specpilot cost measure` from end to end, against a server that only counts and waits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specpilot_sglang.eval.client import Answer
from specpilot_sglang.eval.prompts import Prompt
from specpilot_sglang.loop.cost import machine, measure
from specpilot_sglang.loop.cost.table import Rates, Work, load_table

STEP_S, PREFILL_S, TOKENS_A_STEP = 0.004, 0.006, 4


class Clock:
    """Time that only passes when a server works: what a busy machine adds to it is not under test."""

    now = 0.0

    @classmethod
    def perf_counter(cls) -> float:
        return cls.now

    @classmethod
    def sleep(cls, seconds: float) -> None:
        cls.now += seconds

    @staticmethod
    def time() -> float:
        return 0.0


class FakeClient:
    """Answers after the time that its own counters report; one request at a time."""

    def __init__(self, block: int) -> None:
        self.block, self.hits = block, {"speculative_steps": 0}

    def _count(self, name: str, seconds: float, times: int = 1) -> None:
        for key, value in ((f"cost.{name}.us", round(1e6 * seconds * times)), (f"cost.{name}.n", times)):
            self.hits[key] = self.hits.get(key, 0) + value

    def generate(self, *, input_ids, sampling) -> Answer:
        tokens = sampling["max_new_tokens"]
        steps = -(-(tokens - 1) // (TOKENS_A_STEP if self.block else 1))
        self._count("prefill.16", PREFILL_S)
        place = f"1x{self.block or 1}"
        self._count(f"step.{place}", STEP_S, steps)
        if self.block:
            self._count(f"draft.{place}", 0.001, steps)
            self._count(f"verify.{place}", 0.0025, steps)
        else:
            self._count(f"decode.{place}", 0.0035, steps)
        Clock.sleep(PREFILL_S + STEP_S * steps)
        meta = {"spec_verify_ct": steps, "spec_correct_drafts_histogram": [0, 0, 0, steps]} if self.block else {}
        return Answer(list(range(tokens)), "", "length", meta)

    def attestation(self):
        return {"ranks": [{"hits": dict(self.hits)}]}

    def flush_cache(self) -> None:
        pass


@pytest.fixture
def measured(cli, monkeypatch, tmp_path):
    commands = []

    class FakeServer:
        up = most_up = 0

        def __init__(self, args, *, name, log, start_timeout_s):
            commands.append(args)
            block = args[args.index("--speculative-num-draft-tokens") + 1] if name != "plain" else 0
            self.name, self.client = name, FakeClient(int(block))

        def launch(self):
            FakeServer.up += 1
            FakeServer.most_up = max(FakeServer.most_up, FakeServer.up)

        def start(self):
            pass

        def processes(self):
            return []

        def stop(self):
            FakeServer.up -= 1

    monkeypatch.setattr(measure, "Server", FakeServer)
    monkeypatch.setattr(measure, "time", Clock)
    monkeypatch.setattr(measure, "measure_rates", lambda device, dtype: Rates(1e9, 1e9))
    monkeypatch.setattr(measure, "work_of", lambda model, draft, size: Work(1e6, 1e6, 1e5, 1e5))
    monkeypatch.setattr(measure, "load_tokenizer", lambda model: None)
    monkeypatch.setattr(measure, "encode", lambda items, tokenizer: [Prompt(i, "s", [1] * 16) for i in items])
    monkeypatch.setattr(measure.suites, "load", lambda name, limit=8: [f"{name}/{i}" for i in range(limit)])
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text(json.dumps({"block_size": 8}))
    out = tmp_path / "cost.json"
    arguments = ["--model", tmp_path, "--draft", tmp_path / "draft", "--concurrency", 1, "--out", out]

    def run(*more):
        return cli("cost", "measure", *arguments, *more), out, commands

    run.server = FakeServer
    return run


def test_a_table_is_measured_and_predicts_a_held_out_load(measured):
    done, out, commands = measured("--block", 8, "--block", 4, "--held-out", "6:1:humaneval")
    assert done.code == 0, done.err
    table = load_table(out)
    assert [(p.batch, p.width) for p in table.spec] == [(1, 8), (1, 4)]
    assert table.spec[0].step_s == pytest.approx(STEP_S)
    assert table.spec[0].overhead_s == pytest.approx(0.0005)
    assert table.ar[0].verify_s == pytest.approx(0.0035)
    assert table.distribution("gsm8k").length == pytest.approx(TOKENS_A_STEP)
    predictions = json.loads(out.with_name("cost-predictions.json").read_text())
    (held_out,) = predictions["held_out"]
    assert abs(held_out["error"]) < 0.1
    assert json.loads((out.parent / "cost-logs" / "measured.json").read_text())["observations"]
    assert all("timing_overlay" in " ".join(args) for args in commands)
    assert (measured.server.up, measured.server.most_up) == (0, 1)


def test_servers_that_are_up_together_take_turns_and_a_host_that_slows_down_midway_does_not_spoil_the_prediction(
    measured, monkeypatch
):
    """Measured one after the other, the held-out server would have met another host than the fitted ones."""
    asked = []
    quick = FakeClient.generate

    def generate(self, *, input_ids, sampling):
        asked.append(self.block)
        slow = 1.0 if len(asked) < 120 else 1.6
        monkeypatch.setattr(f"{__name__}.STEP_S", 0.004 * slow)
        monkeypatch.setattr(f"{__name__}.PREFILL_S", 0.006 * slow)
        return quick(self, input_ids=input_ids, sampling=sampling)

    monkeypatch.setattr(FakeClient, "generate", generate)
    settings = ("--block", 8, "--block", 4, "--held-out", "6:1:gsm8k", "--rounds", 12, "--together", "--prompts", 5)
    done, out, _ = measured(*settings)
    assert (measured.server.up, measured.server.most_up) == (0, 4)
    turns = [block for n, block in enumerate(asked) if not n or asked[n - 1] != block]
    assert len(turns) >= 12
    (held_out,) = json.loads(out.with_name("cost-predictions.json").read_text())["held_out"]
    assert abs(held_out["error"]) < 0.1, held_out
    assert done.code == 0


def test_a_prediction_that_is_off_exits_1(measured, monkeypatch):
    slow = FakeClient.generate

    def generate(self, **kwargs):
        Clock.sleep(0.1 if self.block == 6 else 0)
        return slow(self, **kwargs)

    monkeypatch.setattr(FakeClient, "generate", generate)
    done, *_ = measured("--block", 8, "--block", 4, "--held-out", "6:1:humaneval")
    assert done.code == 1


def test_a_server_that_times_nothing_is_an_error(measured, monkeypatch):
    monkeypatch.setattr(FakeClient, "_count", lambda self, *args: None)
    done, *_ = measured("--block", 8)
    assert done.code == 2
    assert "timed no pass" in done.err


def test_rates_are_those_of_this_machine(monkeypatch):
    monkeypatch.setattr(machine, "_COPY_BYTES", {"cpu": 64 * 2**20})
    monkeypatch.setattr(machine, "_GEMM", {"cpu": 256})
    rates = machine.measure_rates("cpu", "float32")
    assert 1e8 < rates.bytes_s < 1e13
    assert 1e8 < rates.flops_s < 1e15


def test_the_timing_overlay_is_valid():
    from specpilot_sglang.overlay import load_overlay

    loaded = load_overlay(str(Path(measure.__file__).parent / "timing_overlay"))
    assert loaded.overlay.weights.format == "bf16"
    assert len(loaded.overlay.patches) == 1
