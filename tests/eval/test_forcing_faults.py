"""Token forcing finds every kind of wrong answer, at its position, and says what it could not judge."""

from __future__ import annotations

import json

import pytest
from stub_server import END, VOCABULARY, StubServer, decode, next_token
from typer.testing import CliRunner

from specpilot_sglang.cli.eval_cmd import app
from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.forcing import first_difference, force
from specpilot_sglang.eval.forcing_prefill import force_by_prefill
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.records import Request, Run

GREEDY = {"temperature": 0.0, "max_new_tokens": 16, "ignore_eos": False}


def reference(*prompts: list[int], new: int = 16, **sampling: object) -> Run:
    rows = []
    for number, prompt in enumerate(prompts or ([5, 6, 7], [8, 9])):
        out, finish = decode(prompt, new, ignore_eos=bool(sampling.get("ignore_eos")))
        rows.append(Request(f"r{number}", "toy", prompt, out, finish))
    return Run({**GREEDY, "max_new_tokens": new, **sampling}, rows)


def at(run: Run, row: int, position: int) -> list[int]:
    """The prefix before an output position of a reference request."""
    return run.requests[row].prompt_ids + run.requests[row].output_ids[:position]


def report(run: Run, fault=None, *, margin: float = 0.5, answer=None, **kwargs) -> ForcingReport:
    with StubServer(fault, margin=margin, answer=answer) as stub:
        client = Client(stub.url)
        try:
            return ForcingReport(force(run, client, **kwargs))
        finally:
            client.close()


def where(outcome: ForcingReport) -> list[tuple[str, int, int | None, int | None]]:
    return [(m.request, m.position, m.reference, m.candidate) for m in outcome.mismatches]


def test_equal_server_has_no_mismatch_and_covers_every_position():
    run = reference()
    outcome = report(run)
    assert outcome.within()
    assert (outcome.positions, outcome.by_prefill, outcome.equal_requests()) == (32, 2, 2)
    assert outcome.interval()[1] == pytest.approx(1 - 0.025 ** (1 / 32))


def test_injected_wrong_token_is_reported_once_and_judging_goes_on():
    run = reference()
    bad = {tuple(at(run, 0, 4)): 999, tuple(at(run, 0, 9)): 998}
    outcome = report(run, lambda prefix, token: bad.get(tuple(prefix), token))
    out = run.requests[0].output_ids
    assert where(outcome) == [("r0", 4, out[4], 999), ("r0", 9, out[9], 998)]
    assert outcome.positions == 32
    assert outcome.by_prefill == 4
    assert not outcome.within()
    assert outcome.rate == pytest.approx(2 / 32)


def test_wrong_first_token_is_marked_as_prefill():
    run = reference()
    first = at(run, 1, 0)
    outcome = report(run, lambda prefix, token: 1 if prefix == first else token)
    assert [(m.request, m.position, m.by_prefill) for m in outcome.mismatches] == [("r1", 0, True)]


def test_wrong_last_token_is_caught():
    run = reference()
    last = at(run, 0, 15)
    assert where(report(run, lambda prefix, token: 1 if prefix == last else token))[0][1] == 15


def test_swapped_tokens_are_one_mismatch_given_the_references_prefix():
    run = reference()
    out = run.requests[0].output_ids
    early, late = at(run, 0, 6), [*at(run, 0, 6), out[7]]

    def swap(prefix: list[int], token: int) -> int:
        return out[7] if prefix == early else out[6] if prefix == late else token

    assert where(report(run, swap)) == [("r0", 6, out[6], out[7])]


@pytest.mark.parametrize("kept", [0, 1, 15])
def test_truncated_output_is_a_mismatch_that_no_margin_excuses(kept):
    run = reference()
    end = at(run, 0, kept)
    outcome = report(run, lambda prefix, token: None if prefix == end else token, margin=0.0)
    assert where(outcome) == [("r0", kept, run.requests[0].output_ids[kept], None)]
    assert outcome.counted == outcome.mismatches
    assert outcome.mismatches[0].margin is None


def test_early_end_token_is_caught():
    run = reference()
    early = at(run, 0, 3)
    outcome = report(run, lambda prefix, token: END if prefix == early else token)
    assert where(outcome) == [("r0", 3, run.requests[0].output_ids[3], END)]


def test_missed_end_token_and_output_beyond_the_end_are_caught():
    run = reference(list(range(10, 45)), new=30)
    assert run.requests[0].finish == "stop"
    full = at(run, 0, 5)
    outcome = report(run, lambda prefix, token: 77 if prefix == full else token)
    assert where(outcome) == [("r0", 5, END, 77)]

    def never_stops(body: dict) -> tuple[int, dict]:
        out, _ = decode(body["input_ids"], body["sampling_params"]["max_new_tokens"], ignore_eos=True)
        return 200, {"output_ids": out, "meta_info": {"finish_reason": {"type": "length"}}}

    assert where(report(run, answer=never_stops)) == [("r0", 6, None, END)]


def test_ignored_end_token_is_replayed_with_the_same_setting():
    run = reference(list(range(10, 45)), new=12, ignore_eos=True)
    assert run.requests[0].output_ids.count(END) > 1
    assert report(run).within()


@pytest.mark.parametrize(("margin", "excused"), [(0.0, 1), (9e-5, 1), (2e-4, 0)])
def test_only_a_margin_under_the_limit_excuses(margin, excused):
    run = reference()
    place = at(run, 0, 4)
    outcome = report(run, lambda prefix, token: 999 if prefix == place else token, margin=margin)
    assert outcome.mismatches[0].margin == pytest.approx(margin, abs=1e-12)
    assert len(outcome.mismatches) - len(outcome.counted) == excused
    assert outcome.within() == bool(excused)


def test_two_unlikely_tokens_are_no_tie():
    run = reference()
    place, out = at(run, 0, 4), run.requests[0].output_ids
    wrong = Request("r0", "toy", run.requests[0].prompt_ids, [*out[:4], 700], "length")
    outcome = report(Run(GREEDY, [wrong]), lambda prefix, token: 701 if prefix == place else token)
    assert outcome.mismatches[0].margin == pytest.approx(0.5)


def test_first_pass_saves_a_generation_and_judges_the_same():
    run = reference()
    place = at(run, 0, 4)

    def fault(prefix, token):
        return 999 if prefix == place else token

    first = {r.id: Request(r.id, "", r.prompt_ids, decode(r.prompt_ids, 16, fault)[0], "length") for r in run.requests}
    with StubServer(fault) as stub:
        client = Client(stub.url)
        outcome = ForcingReport(force(run, client, first_pass=first))
        client.close()
        generated = [b for b in stub.bodies if not b.get("return_logprob")]
    assert where(outcome) == [("r0", 4, run.requests[0].output_ids[4], 999)]
    assert len(generated) == 1


def test_failed_requests_are_listed_and_never_pass():
    run = reference()

    def half(body: dict) -> tuple[int, dict]:
        if body["input_ids"][:2] == [5, 6]:
            return 500, {"error": "scheduler died"}
        out, finish = decode(body["input_ids"], body["sampling_params"]["max_new_tokens"])
        return 200, {"output_ids": out, "meta_info": {"finish_reason": {"type": finish}}}

    outcome = report(run, answer=half, concurrency=2)
    assert [v.request for v in outcome.failed] == ["r0"]
    assert "scheduler died" in outcome.failed[0].error
    assert not outcome.mismatches
    assert not outcome.within(max_rate=1.0)


@pytest.mark.parametrize(
    "reply",
    [
        {"output_ids": [], "meta_info": {"finish_reason": {"type": "abort", "message": "out of memory"}}},
        {"text": "no ids", "meta_info": {"finish_reason": {"type": "length"}}},
        ["not", "an", "object"],
    ],
)
def test_aborts_and_answers_without_ids_are_failures(reply):
    outcome = report(reference(), answer=lambda body: (200, reply))
    assert len(outcome.failed) == 2
    assert not outcome.within(max_rate=1.0)


def test_empty_reference_is_a_failure_not_a_pass():
    run = Run(GREEDY, [Request("r0", "", [5], [], "length")])
    outcome = report(run)
    assert outcome.failed
    assert not outcome.within(max_rate=1.0)


def test_reference_failure_is_carried_over():
    run = Run(GREEDY, [Request("r0", "", [5], [], "", error="lost")])
    assert "lost" in report(run).failed[0].error


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.7}, {"frequency_penalty": 0.5}, {"json_schema": "{}"}, {"n": 2}, {"min_new_tokens": 4}],
)
def test_runs_that_cannot_be_continued_are_refused(sampling):
    with pytest.raises(SpecPilotError):
        report(reference(**sampling))


def test_concurrency_keeps_request_order():
    run = reference(*[[n, n + 1] for n in range(5, 25)])
    assert [v.request for v in force_with(run, 8)] == [f"r{n}" for n in range(20)]


def force_with(run: Run, concurrency: int) -> list:
    with StubServer() as stub:
        return force(run, Client(stub.url), concurrency=concurrency)


def test_prefill_mode_finds_a_wrong_reference_token():
    run = reference()
    out = list(run.requests[0].output_ids)
    right, out[5] = out[5], (out[5] + 1) % VOCABULARY
    # Later tokens follow the wrong prefix, so that only one position differs.
    out[6:] = decode([*run.requests[0].prompt_ids, *out[:6]], 10)[0]
    changed = Run(GREEDY, [Request("r0", "", run.requests[0].prompt_ids, out, "length")])
    with StubServer() as stub:
        client = Client(stub.url)
        good = ForcingReport(force_by_prefill(run, client))
        bad = ForcingReport(force_by_prefill(changed, client))
        client.close()
    assert good.within()
    assert good.positions == 32
    assert where(bad) == [("r0", 5, out[5], right)]
    assert bad.mismatches[0].margin == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("expected", "got", "index"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([1], [1, 2], 1), ([1], [], 0), ([], [], None)],
)
def test_first_difference(expected, got, index):
    assert first_difference(expected, got) == index


def test_command_line_exit_codes_and_json(tmp_path):
    run = reference()
    run.save(tmp_path / "run.jsonl")
    place = at(run, 0, 4)
    with StubServer() as good, StubServer(lambda p, t: 999 if p == place else t) as bad:
        same = CliRunner().invoke(
            app, ["force", "--reference", str(tmp_path / "run.jsonl"), "--candidate", good.url], standalone_mode=False
        )
        differs = CliRunner().invoke(
            app,
            ["force", "--reference", str(tmp_path / "run.jsonl"), "--candidate", bad.url, "--json"],
            standalone_mode=False,
        )
    assert same.return_value == 0
    assert differs.return_value == 1
    outcome = json.loads(differs.stdout)
    assert outcome["mismatches_counted"] == 1
    assert outcome["mismatches"][0]["position"] == 4
    assert outcome["within"] is False


def test_toy_model_is_a_function_of_the_prefix():
    assert next_token([5, 6]) == next_token([5, 6]) != next_token([6, 5])
