"""One block through the runner that real nights use, against a server in this process."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from nightly_fakes import config

from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.load.results import LoadResult, Sample
from specpilot_sglang.eval.nightly import measure
from specpilot_sglang.eval.nightly.plan import BlockKey, Pair, arm_of
from specpilot_sglang.eval.nightly.run import BlockSpec
from specpilot_sglang.eval.prompts import Prompt
from specpilot_sglang.eval.suites import Item

sys.path.insert(0, str(Path(__file__).parent.parent / "eval"))
from stub_server import StubServer, next_token

PAIR = Pair(Path("model"), Path("draft"), "")


class FakeServer:
    """What the runner uses of `Server`."""

    start_s, command = 1.5, ["launch"]

    def __init__(self, client: Client, attestation=None) -> None:
        self.client = client
        client.attestation = lambda: attestation

    def __enter__(self):
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def processes(self):
        return [psutil.Process()]

    def server_info(self):
        return {"internal_states": [{"memory_usage": {"weight": 0.5, "kvcache": 0.25, "graph": {"a": 0.1, "b": 0.2}}}]}


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Returns a function that measures a block and what was asked of the load."""
    asked = []

    def run_load(server, workload, out):
        asked.append(workload)
        right = {"gsm8k/0": "The answer is 7."}
        samples = [
            Sample(i.id, i.suite, 10, 20, right.get(i.id, "The answer is 8."), 0.1, (0.05,), 0.5)
            for i in workload.items
        ]
        return LoadResult(tuple(samples), 2.0, workload.concurrency, 9, 3.0, {}, {}, None, None, {"gpu": "x"})

    items = [Item(f"gsm8k/{n}", "gsm8k", f"question {n}", "7") for n in range(4)]
    monkeypatch.setattr(measure, "run_load", run_load)
    monkeypatch.setattr(measure.suites, "load", lambda name, limit: items[:limit])
    monkeypatch.setattr(measure, "load_tokenizer", lambda model: None)
    monkeypatch.setattr(
        measure, "encode", lambda rows, tok: [Prompt(i.id, i.suite, [5, n]) for n, i in enumerate(rows)]
    )

    def call(arm: str, round_: int = 0, *, fault=None, reference=None, attestation=None):
        stub = StubServer(fault)
        stub.answer = lambda body: (200, stub.generate(body) if "input_ids" in body else {})
        folder = tmp_path / f"{arm}-{round_}"
        folder.mkdir()
        settings = config(accuracy={"suites": {"gsm8k": 4}}, load={"suites": {"gsm8k": 3}, "concurrency": [1, 2]})
        spec = BlockSpec(BlockKey("small", arm, round_), settings, settings.deployments[0], PAIR, reference)
        with stub, closing(Client(stub.url)) as client:
            monkeypatch.setattr(Arm, "server", lambda self, **kwargs: FakeServer(client, attestation))
            return measure.ServerRunner(lambda line: None)(spec, folder), folder

    call.asked = asked
    return call


def test_the_first_block_of_ar_is_the_reference_and_scores_answers(measured):
    block, folder = measured("ar")
    assert [load.concurrency for load in block.loads] == [1, 2]
    assert block.loads[0].output_tok_s == pytest.approx(60 / 2.0)
    assert block.accuracy == {"gsm8k": {"gsm8k/0": True, "gsm8k/1": False, "gsm8k/2": False, "gsm8k/3": False}}
    assert (folder / block.reference).exists()
    assert block.forcing is None
    assert block.memory["weights"] == 0.5 * 2**30
    assert block.memory["graphs"] == pytest.approx(0.3 * 2**30)
    assert block.memory["rss"] > 1e6
    scored = measured.asked[-1]
    assert "question 0" in scored.items[0].text != "question 0"  # with the suite's instruction


def test_stock_is_forced_along_the_reference_and_a_wrong_token_is_found(measured):
    ar, folder = measured("ar")
    reference = folder / ar.reference

    def fault(prefix, token):
        return 999 if len(prefix) == 12 else token

    good, _ = measured("stock", reference=reference, fault=lambda prefix, token: token)
    assert good.forcing["mismatches_total"] == 0
    assert good.accept["gsm8k"]["steps"] > 0
    assert next_token([5, 0]) != 999
    bad, _ = measured("specpilot", reference=reference, fault=fault)
    assert bad.forcing["mismatches_total"] == 2  # one in each of both prompts


def test_later_rounds_only_measure_speed(measured):
    block, _ = measured("stock", 1)
    assert (block.forcing, block.accuracy, block.histogram) == (None, {}, ())
    assert len(measured.asked) == 2


def test_a_plugin_that_did_not_run_is_a_problem_and_stock_needs_no_attestation(measured):
    idle = {"consistent": True, "ranks": [{"hits": {"speculative_steps": 0}}]}
    assert any("counters are zero" in p for p in measured("specpilot", 1, attestation=idle)[0].problems)
    busy = {"consistent": True, "ranks": [{"hits": {"speculative_steps": 4}}]}
    assert measured("specpilot", 2, attestation=busy)[0].problems == ()
    assert measured("stock", 1)[0].problems == ()


def test_the_three_servers_differ_in_decoding_only():
    settings = config()
    deployment = settings.deployments[0]
    ar, stock, ours = (arm_of(deployment, PAIR, name).args for name in ("ar", "stock", "specpilot"))
    assert set(ar) < set(stock) < set(ours)
    assert set(stock) - set(ar) == {"--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "draft"}
    assert set(ours) - set(stock) == {"--speculative-plugin", "specpilot"}
