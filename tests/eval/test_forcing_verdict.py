"""The verdict against stock catches every kind of wrong answer, and lets rounding that stock shares pass."""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from stub_server import StubServer, decode
from typer.testing import CliRunner

from specpilot_sglang.cli.eval_cmd import app
from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.forcing import Mismatch, Verdict, force
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.forcing_verdict import compare
from specpilot_sglang.eval.paired_rates import excess, score_bound
from specpilot_sglang.eval.records import Request, Run

GREEDY = {"temperature": 0.0, "max_new_tokens": 30, "ignore_eos": False}


def reference(requests: int = 40, new: int = 30) -> Run:
    rows = []
    for number in range(requests):
        prompt = [5 + number // 900, 6 + number % 900]
        rows.append(Request(f"r{number}", "toy", prompt, *decode(prompt, new)))
    return Run(GREEDY, rows)


def forced(run: Run, fault=None, *, margin: float = 2.0, concurrency: int = 4, answer=None) -> ForcingReport:
    with StubServer(fault, margin=margin, answer=answer) as stub:
        client = Client(stub.url)
        try:
            return ForcingReport(force(run, client, concurrency=concurrency))
        finally:
            client.close()


def wrong_at(run: Run, places: dict[int, list[int]]):
    """A fault that changes the token at positions (by request number) of the reference."""
    spots = {
        tuple(run.requests[n].prompt_ids + run.requests[n].output_ids[:position])
        for n, positions in places.items()
        for position in positions
    }
    return lambda prefix, token: 999 if tuple(prefix) in spots else token


def exact(run: Run) -> ForcingReport:
    return ForcingReport([Verdict(r.id, r.suite, len(r.output_ids), 1) for r in run.requests])


def report(
    run: Run, spots: list[tuple[int, int]], *, margin: float | None = 0.1, candidate: int = 999
) -> ForcingReport:
    verdicts = [Verdict(r.id, r.suite, len(r.output_ids), 1, []) for r in run.requests]
    for number, position in spots:
        token = run.requests[number].output_ids[position]
        mismatch = Mismatch(f"r{number}", position, token, candidate, margin, by_prefill=False)
        verdicts[number].mismatches.append(mismatch)
    return ForcingReport(verdicts)


def test_one_wrong_token_in_ten_thousand_is_rejected_at_any_concurrency():
    run = reference(340)
    fault = wrong_at(run, {77: [13]})
    for concurrency in (1, 16):
        verdict = compare(exact(run), forced(run, fault, concurrency=concurrency))
        assert not verdict.accepted
        assert verdict.positions == 340 * 30
        assert verdict.upper < 0.005  # the rate alone would pass
        (found,) = verdict.beyond_tie
        assert (found.request, found.position, found.candidate) == ("r77", 13, 999)
        assert "r77 position 13" in verdict.reason


def test_equal_candidate_is_accepted():
    run = reference()
    verdict = compare(exact(run), forced(run))
    assert verdict.accepted
    assert (verdict.excess, verdict.candidate_only, verdict.beyond_tie) == (0.0, 0, ())
    assert verdict.upper == pytest.approx(1.6449**2 / (1200 + 1.6449**2), rel=1e-3)


def test_swapped_top_two_is_rejected_by_margin_or_by_rate():
    run = reference(200)
    every = {n: [9] for n in range(0, 200, 2)}  # 100 of 6,000 positions
    clear = compare(exact(run), forced(run, wrong_at(run, every), margin=0.8))
    assert len(clear.beyond_tie) == 100
    close = compare(exact(run), forced(run, wrong_at(run, every), margin=0.2))
    assert not close.accepted
    assert not close.beyond_tie
    assert close.excess == pytest.approx(100 / 6000)
    assert "too many mismatches" in close.reason
    assert not compare(exact(run), forced(run, wrong_at(run, {0: [9]}), margin=0.2), dtype="float32").accepted


def test_kv_slot_written_by_another_request_is_caught_under_load_only():
    """Two requests in flight share a slot: whoever reads last sees the other's prompt."""
    run, slots, lock = reference(24), {}, threading.Lock()

    def answer(body: dict) -> tuple[int, dict]:
        if body.get("return_logprob"):
            return 200, StubServer.generate(stub, body)
        prompt = body["input_ids"]
        with lock:
            slots[0] = prompt
        time.sleep(0.01)
        with lock:
            seen = slots[0]
        out, finish = decode(seen, body["sampling_params"]["max_new_tokens"])
        return 200, {"output_ids": out, "meta_info": {"finish_reason": {"type": finish}}}

    stub = StubServer(margin=3.0)
    alone = compare(exact(run), forced(run, answer=answer, concurrency=1))
    loaded = compare(exact(run), forced(run, answer=answer, concurrency=8))
    assert alone.accepted
    assert not loaded.accepted
    assert loaded.beyond_tie


def test_rounding_that_stock_shares_passes_and_more_of_it_does_not():
    run = reference(400)  # 12,000 positions
    shared = [(n, 5) for n in range(0, 400, 4)]
    own = [(n, 7) for n in range(0, 400, 20)]
    stock = report(run, shared)
    verdict = compare(stock, report(run, shared + own))
    assert verdict.accepted
    assert (verdict.stock_only, verdict.candidate_only) == (0, 20)
    assert verdict.excess == pytest.approx(20 / 12_000)
    worse = compare(stock, report(run, shared + [(n, p) for n in range(0, 400, 4) for p in (8, 9)]))
    assert not worse.accepted
    assert worse.excess > 0.005


def test_stocks_own_large_mismatch_excuses_the_same_token_only():
    run = reference()
    stock = report(run, [(3, 4)], margin=2.0)
    assert compare(stock, report(run, [(3, 4)], margin=2.0)).accepted
    assert not compare(stock, report(run, [(3, 4)], margin=2.0, candidate=998)).accepted


@pytest.mark.parametrize("margin", [None, math.inf])
def test_answer_that_ends_elsewhere_is_never_a_tie(margin):
    run = reference(400)
    assert not compare(exact(run), report(run, [(0, 3)], margin=margin)).accepted


def test_too_few_positions_reject_although_nothing_was_wrong():
    verdict = compare(exact(reference(10)), exact(reference(10)))
    assert not verdict.accepted
    assert verdict.excess == 0.0
    assert "too few positions" in verdict.reason


def test_errors_that_come_together_widen_the_interval():
    run = reference(400)
    spread = compare(exact(run), report(run, [(n, 3) for n in range(30)]))
    together = compare(exact(run), report(run, [(n, p) for n in range(2) for p in range(15)]))
    assert spread.excess == together.excess
    assert together.upper > spread.upper


def test_failed_requests_and_other_references_are_no_pass():
    run = reference(400)
    broken = exact(run)
    broken.verdicts[5] = Verdict("r5", "toy", 0, 0, error="HTTP 500")
    verdict = compare(exact(run), broken)
    assert not verdict.accepted
    assert "r5: HTTP 500" in verdict.reason
    with pytest.raises(SpecPilotError, match="stock failed on r5"):
        compare(broken, exact(run))
    with pytest.raises(SpecPilotError, match="same requests"):
        compare(exact(reference(399)), exact(run))
    shorter = exact(run)
    shorter.verdicts[0] = replace(shorter.verdicts[0], positions=29)
    with pytest.raises(SpecPilotError, match="r0: stock was forced through other tokens"):
        compare(shorter, exact(run))
    with pytest.raises(SpecPilotError, match="float32, float16, bfloat16"):
        compare(exact(run), exact(run), dtype="fp4")


def test_bound_covers_the_truth():
    """One-sided 95%: the true excess lies above the bound in about 5% of samples, also where errors cluster."""
    rng = np.random.default_rng(0)
    independent = clustered = 0
    for _ in range(600):
        groups = []
        for _ in range(60):
            draw = rng.random(100)
            groups.append((set(np.flatnonzero(draw < 0.012)), set(np.flatnonzero(draw > 0.994)), 100))
        independent += excess(groups).upper < 0.006
        bad = rng.random(60) < 0.12  # an eighth of the requests has 10% errors
        groups = [(set(range(10)) if b else set(), set(), 100) for b in bad]
        clustered += excess(groups).upper < 0.012
    assert independent / 600 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)
    assert clustered / 600 < 0.10
    assert score_bound(0, 0, 1000, 1.6449) == pytest.approx(0.0027, rel=0.01)
    assert score_bound(1000, 0, 1000, 1.6449) == 1.0


def test_report_survives_a_round_trip():
    run = reference()
    original = forced(run, wrong_at(run, {1: [3], 2: [4, 8]}))
    row = json.loads(json.dumps(original.to_json()))
    assert ForcingReport.from_json(row).to_json() == original.to_json()
    row["mismatches"].pop()
    with pytest.raises(SpecPilotError, match="not a token forcing report"):
        ForcingReport.from_json(row)


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["force", *words], standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.return_value, result.stdout


def test_command_line_judges_against_a_stock_server_or_its_report(tmp_path):
    run = reference(40)
    run.save(tmp_path / "run.jsonl")
    kept = str(tmp_path / "stock.json")
    one = wrong_at(run, {7: [11]})
    common = ("--reference", str(tmp_path / "run.jsonl"), "--dtype", "bfloat16", "--json")
    with StubServer() as stock, StubServer(one, margin=2.0) as bad:
        code, text = invoke(*common, "--candidate", stock.url, "--stock", stock.url, "--out", kept)
        assert code == 0
        assert json.loads(text)["verdict"]["accepted"] is True
        for place in (stock.url, kept):
            code, text = invoke(*common, "--candidate", bad.url, "--stock", place)
            row = json.loads(text)
            assert code == 1
            assert row["verdict"]["beyond_tie"][0]["request"] == "r7"
            assert row["provenance"]["versions"]["sglang"]
        # Margins come from stock, which scores the wrong token, not from the candidate.
        scored = [b for b in stock.bodies if b.get("return_logprob")]
        assert len(scored) == 1
        assert row["provenance"]["margins_by"] == bad.url  # stock's report alone cannot score
        (tmp_path / "stock.json").write_text("{}")
        with pytest.raises(SpecPilotError, match="not a token forcing report"):
            invoke(*common, "--candidate", bad.url, "--stock", kept)
        with pytest.raises(SpecPilotError, match="cannot read stock's report"):
            invoke(*common, "--candidate", bad.url, "--stock", str(tmp_path / "none.json"))


def test_toy_references_differ():
    outputs = [tuple(r.output_ids) for r in reference(340).requests]
    assert len(set(outputs)) == 340
    assert all(a != b for a, b in itertools.pairwise(outputs))
