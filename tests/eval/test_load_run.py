"""A load run goes through SGLang's own client, keeps every request, and is refused for what it must not claim."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import ClassVar

import pytest
from stub_chat import WORDS, StubChat, tokenizer_of

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.load import run, turns
from specpilot_sglang.eval.load.process import OutsideClock
from specpilot_sglang.eval.load.results import load_result
from specpilot_sglang.eval.load.run import RunRefusedError, Workload, draw, run_load, run_pair
from specpilot_sglang.eval.prompts import encode
from specpilot_sglang.eval.suites import Item

ITEMS = tuple(Item(f"toy/{n}", "toy", f"{n * 7} birds\u2028sit on a wire, {n} fly away.") for n in range(6))


@pytest.fixture
def stub(smollm2, tmp_path):
    with StubChat(smollm2, tmp_path) as server:
        yield server


def fake_client(monkeypatch, stub: StubChat, *, window: float = 2.0, **changes):
    """Replaces the benchmark client by one that writes what it would write, without its 15 s of imports."""

    def run_client(command, env, log: Path, timeout_s: float) -> OutsideClock:
        rows = [json.loads(line) for line in (log.parent / "dataset.jsonl").read_text().splitlines()]
        tokens = stub.server_tokens(rows)
        count = len(rows)
        found = {
            "duration": 0.9,
            "accept_length": 2.0,
            "input_lens": tokens,
            "output_lens": [8] * count,
            "ttfts": [0.1] * count,
            "itls": [[0.01] * 7] * count,
            "generated_texts": [" ".join(WORDS[:8])] * count,
            "errors": [""] * count,
            "cached_tokens": [0] * count,
            **changes,
        }
        (log.parent / "client.jsonl").write_text(json.dumps(found) + "\n")
        return OutsideClock(20.0, window)

    def server_tokens(rows):
        items = [Item(str(n), "", row["messages"][0]["content"]) for n, row in enumerate(rows)]
        return [len(p.ids) for p in encode(items, tokenizer_of(stub.tokenizer_path))]

    stub.server_tokens = server_tokens
    monkeypatch.setattr(run, "run_client", run_client)
    monkeypatch.setattr(run, "load_tokenizer", tokenizer_of)


def test_real_client_sends_our_prompts_once_in_order_and_keeps_each_answer(stub, tmp_path):
    result = run_load(stub, Workload(ITEMS, 10, 2, seed=3), tmp_path / "out", timeout_s=300)
    assert [s.id for s in result.samples] == [i.id for i in ITEMS]
    assert sorted(r["messages"][0]["content"] for r in stub.requests) == sorted(i.text for i in ITEMS)
    assert {s.output_tokens for s in result.samples} == {10}
    assert {len(s.itl_s) for s in result.samples} == {9}
    assert result.samples[0].text == "".join(f" {w}" for w in WORDS[:10])
    assert 0.2 < result.duration_s < result.environment["client"]["window_s"]
    assert result.output_tok_s == pytest.approx(60 / result.duration_s)
    assert (result.verify_steps, result.accept_length) == (30, pytest.approx(54 / 30))
    body = stub.requests[0]
    assert (body["ignore_eos"], body["temperature"], body["max_completion_tokens"]) == (False, 0.0, 10)
    assert stub.flushes == 2  # after our warm-up, and by the client
    assert load_result(tmp_path / "out" / "load.json") == result
    assert "hush" not in (tmp_path / "out" / "load.json").read_text()


def test_real_clients_of_two_servers_ask_in_turns_and_only_the_time_of_their_own_requests_counts(smollm2, tmp_path):
    with StubChat(smollm2, tmp_path / "a") as one, StubChat(smollm2, tmp_path / "b") as two:
        one.name, two.name = "one", "two"
        heard: list[str] = []
        outs = [tmp_path / "out-a", tmp_path / "out-b"]
        workload = Workload(ITEMS, 10, 1)
        results = run_pair([one, two], workload, outs, timeout_s=300, watch=lambda server: heard.append(server.name))
        sent = [*((at, "one") for at in one.times), *((at, "two") for at in two.times)]
    abba = ["one", "two", "two", "one"] * 3
    assert [name for _, name in sorted(sent)] == abba
    assert heard == ["one", "two", *abba, "one", "two"]
    for result in results:
        assert result.duration_s == pytest.approx(sum(s.latency_s for s in result.samples))
        assert result.duration_s < 0.75 * result.environment["client_duration_s"]
        assert result.output_tok_s == pytest.approx(60 / result.duration_s)


def test_a_client_that_dies_in_turns_is_an_error_that_names_its_server(smollm2, tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "_MODULE", "specpilot_sglang.eval.load.no_such_module")
    with StubChat(smollm2, tmp_path / "a") as one, StubChat(smollm2, tmp_path / "b") as two:
        with pytest.raises(SpecPilotError, match=r"ended in its turn|ended with exit code 1"):
            run_pair([one, two], Workload(ITEMS, 10, 1), [tmp_path / "x", tmp_path / "y"], timeout_s=60)
        with pytest.raises(SpecPilotError, match="one request at a time"):
            run_pair([one, two], Workload(ITEMS, 10, 2), [tmp_path / "x", tmp_path / "y"])


class SlowClient(turns.Client):
    """A client that answers after a while; `pace` says how long after each turn."""

    pace: ClassVar[dict[str, float]] = {}

    def run(self, timeout_s):
        for _ in range(len(ITEMS)):
            os.read(self.go[0], 1)
            time.sleep(self.pace[self.name])
            os.write(self.done[1], b".")
        return OutsideClock(1.0, 1.0)


def test_the_last_answer_of_a_slow_server_may_come_after_the_other_client_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "_LOOK_S", 0.02)
    monkeypatch.setattr(SlowClient, "pace", {"fast": 0.0, "slow": 0.1})
    clients = [SlowClient(name, [], tmp_path) for name in ("slow", "fast")]
    assert len(turns.run_in_turns(clients, Workload(ITEMS, 10, 1), 60, lambda index: None)) == 2


@pytest.mark.parametrize(
    ("changes", "window", "reason"),
    [
        ({"duration": 0.3, "itls": [[0.01] * 7] * 6}, 6.0, "claims 0.30 s"),
        ({"duration": 5.0}, 2.0, "claims 5.00 s"),
        ({"ttfts": [3.0] * 6}, 2.0, "a request took"),
        ({"output_lens": [90] * 6}, 2.0, "64 were allowed"),
        ({"output_lens": [60] * 6}, 2.0, "its text holds 8"),
        ({"cached_tokens": [0, 0, 0, 200, 0, 0]}, 2.0, "200 prompt tokens came from a cache"),
        ({"input_lens": [3] * 6}, 2.0, "saw 3 prompt tokens"),
    ],
    ids=["clock too fast", "clock too slow", "longer than run", "over limit", "claimed tokens", "old cache", "prompt"],
)
def test_recorded_run_is_refused_afterwards_and_kept_for_inspection(
    stub, tmp_path, monkeypatch, changes, window, reason
):
    fake_client(monkeypatch, stub, window=window, **changes)
    with pytest.raises(RunRefusedError, match=reason) as caught:
        run_load(stub, Workload(ITEMS, 64, 2), tmp_path / "out")
    assert caught.value.when == "after"
    assert not (tmp_path / "out" / "load.json").exists()
    assert any(reason in r for r in load_result(tmp_path / "out" / "refused.json").environment["refused"])


def test_honest_run_is_not_refused(stub, tmp_path, monkeypatch):
    fake_client(monkeypatch, stub)
    result = run_load(stub, Workload(ITEMS, 64, 2), tmp_path / "out")
    assert result.environment["refused"] == []
    about = result.environment["provenance"]["workload"]
    assert (about["requests"], about["suites"]) == (6, ["toy"])


@pytest.mark.parametrize(
    ("thresholds", "when"), [((0.9,), "before"), ((1.0, 1.0, 0.9), "after"), ((1.0, 0.9, 1.0), "after")]
)
def test_relaxed_acceptance_is_refused_before_and_after(smollm2, tmp_path, monkeypatch, thresholds, when):
    with StubChat(smollm2, tmp_path, thresholds=thresholds) as server:
        fake_client(monkeypatch, server)
        with pytest.raises(RunRefusedError, match="acceptance is relaxed") as caught:
            run_load(server, Workload(ITEMS, 64, 2), tmp_path / "out")
    assert caught.value.when == when


def test_simulated_acceptance_and_live_changes_are_refused(stub, tmp_path, monkeypatch):
    fake_client(monkeypatch, stub)
    stub.env = {"SGLANG_SIMULATE_ACC_LEN": "4"}
    with pytest.raises(RunRefusedError, match="SGLANG_SIMULATE_ACC_LEN=4"):
        run_load(stub, Workload(ITEMS, 64, 2), tmp_path / "out")
    unrecorded = run_load(stub, Workload(ITEMS, 64, 2), tmp_path / "out", recorded=False)
    assert any("SGLANG_SIMULATE_ACC_LEN" in reason for reason in unrecorded.environment["refused"])
    stub.env = {}
    stub.log.write_text("[12:00] Config updated via context override: {'speculative_accept_threshold_acc': 0.9}\n")
    with pytest.raises(RunRefusedError, match="changed while it ran"):
        run_load(stub, Workload(ITEMS, 64, 2), tmp_path / "out")


def test_changed_benchmark_client_is_refused(stub, tmp_path, monkeypatch):
    fake_client(monkeypatch, stub)
    monkeypatch.setattr(run, "client_problems", lambda: ({}, ["serving.py is not the file that the wheel installed"]))
    with pytest.raises(RunRefusedError, match="wheel installed"):
        run_load(stub, Workload(ITEMS, 64, 2), tmp_path / "out")


@pytest.mark.parametrize(
    "workload",
    [
        Workload((), 8, 1),
        Workload(ITEMS, 0, 1),
        Workload(ITEMS, 8, 0),
        Workload((*ITEMS, ITEMS[0]), 8, 1),
        Workload((*ITEMS, Item("other", "toy", ITEMS[0].text)), 8, 1),
    ],
)
def test_workloads_that_measure_nothing_or_a_cache_are_refused(stub, tmp_path, workload):
    with pytest.raises(SpecPilotError):
        run_load(stub, workload, tmp_path / "out")


def test_blocks_share_no_prompt_and_a_seed_fixes_them():
    blocks = [draw(ITEMS, 2, seed=5, block=n, blocks=3) for n in range(3)]
    assert sorted(i.id for b in blocks for i in b) == [i.id for i in ITEMS]
    assert blocks[1] == draw(tuple(reversed(ITEMS)), 2, seed=5, block=1, blocks=3)
    assert [draw(ITEMS, 2, seed=s) for s in range(8)].count(blocks[0]) < 4
    with pytest.raises(SpecPilotError, match="4 blocks of 2"):
        draw(ITEMS, 2, seed=5, blocks=4)
    with pytest.raises(SpecPilotError, match="block 3 of 3"):
        draw(ITEMS, 2, seed=5, block=3, blocks=3)
