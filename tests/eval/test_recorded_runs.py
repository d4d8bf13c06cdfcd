"""Recorded runs survive a round trip, a damaged one is named by file and line, and their figures are right."""

from __future__ import annotations

import json
import math

import pytest
from stub_server import StubServer, decode

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.acceptance import by_suite
from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.prompts import Prompt
from specpilot_sglang.eval.recording import greedy, record
from specpilot_sglang.eval.records import Request, Run, load_run
from specpilot_sglang.eval.statistics import binomial_interval, ratio_of_sums


def test_run_survives_a_round_trip(tmp_path):
    run = Run(
        greedy(8), [Request("a\u2028b", "s", [1, 2], [3], "stop", 0.5, 2), Request("c", "", [1], [], "", error="x")]
    )
    run.save(tmp_path / "deep" / "run.jsonl")
    assert load_run(tmp_path / "deep" / "run.jsonl") == run
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["run.jsonl"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (2, "{"),
        (2, "[]"),
        (2, '{"id": "a"}'),
        (2, '{"id":"a","suite":"","prompt_ids":[1.5],"output_ids":[],"finish":""}'),
    ],
)
def test_damaged_line_is_named(tmp_path, line, text):
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps({"kind": "run", "format": 1, "sampling": {}}) + "\n" + text + "\n")
    with pytest.raises(SpecPilotError, match=f"run.jsonl:{line}"):
        load_run(path)


def test_other_files_and_repeated_ids_are_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    with pytest.raises(SpecPilotError, match="cannot read"):
        load_run(path)
    path.write_text("")
    with pytest.raises(SpecPilotError, match="not a recorded run"):
        load_run(path)
    twice = Request("a", "", [1], [2], "stop")
    Run({}, [twice, twice]).save(path)
    with pytest.raises(SpecPilotError, match="twice"):
        load_run(path)


def test_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecPilotError, match="cannot write"):
        Run({}, []).save(tmp_path / "file" / "run.jsonl")


def test_recording_keeps_failures_and_order():
    def answer(body: dict) -> tuple[int, dict]:
        if body["input_ids"] == [7]:
            return 400, {"error": {"message": "too long"}}
        out, finish = decode(body["input_ids"], 4)
        return 200, {"output_ids": out, "meta_info": {"finish_reason": {"type": finish}, "spec_verify_ct": 2}}

    with StubServer(answer=answer) as stub:
        prompts = [Prompt(str(n), "s", [n]) for n in (5, 7, 9)]
        run = record(Client(stub.url), prompts, greedy(4), concurrency=3)
    assert [r.id for r in run.requests] == ["5", "7", "9"]
    assert [bool(r.error) for r in run.requests] == [False, True, False]
    assert "too long" in run.requests[1].error
    assert run.requests[0].output_ids == decode([5], 4)[0]
    assert run.requests[0].verify_steps == 2


def test_unreachable_server_is_an_error_for_the_user():
    with pytest.raises(SpecPilotError, match="no server answers"):
        record(Client("http://127.0.0.1:9"), [Prompt("a", "", [1])], greedy(1))


def test_accept_length_leaves_the_prefill_token_out():
    rows = [Request("a", "s", [1], list(range(9)), "length", verify_steps=2), Request("b", "s", [1], [5], "stop")]
    rows.append(Request("c", "s", [1], list(range(5)), "length", verify_steps=2))
    rows.append(Request("d", "s", [1], [], "", verify_steps=9, error="lost"))
    (found,) = by_suite(rows)
    assert (found.requests, found.tokens, found.steps) == (2, 12, 4)
    assert found.length == pytest.approx(3.0)
    assert found.sglang_length == pytest.approx(14 / 4)


def binomial(trials: int, hits: int, rate: float) -> float:
    return math.comb(trials, hits) * rate**hits * (1 - rate) ** (trials - hits)


def test_intervals():
    assert binomial_interval(0, 0) == (0.0, 1.0)
    assert binomial_interval(0, 100)[1] == pytest.approx(1 - 0.025 ** (1 / 100))
    low, high = binomial_interval(3, 200)
    assert 1 - sum(binomial(200, k, low) for k in range(3)) == pytest.approx(0.025)
    assert sum(binomial(200, k, high) for k in range(4)) == pytest.approx(0.025)
    ratio, error = ratio_of_sums([2, 4, 6], [1, 2, 3])
    assert (ratio, error) == (2.0, 0.0)
