"""From a server's timing counters to a table, and from a table to whole loads."""

from __future__ import annotations

import json
import struct
from functools import partial
from types import SimpleNamespace

import pytest
from test_cost_model import table

from specpilot_sglang import SGLANG_VERSION
from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.cost import counted, timings
from specpilot_sglang.loop.cost.heldout import compare
from specpilot_sglang.loop.cost.measure import merge, request_seconds
from specpilot_sglang.loop.cost.plan import Case, Observation, cases_of
from specpilot_sglang.loop.cost.simulate import Request, loads_of, simulate
from specpilot_sglang.loop.cost.table import Prefill
from specpilot_sglang.loop.cost.work import work_of
from specpilot_sglang.patching import PatchSet
from specpilot_sglang.plugin import counters


@pytest.fixture
def hits():
    counters.reset()
    yield counters.snapshot
    counters.reset()


class Hand:
    """A clock that only moves when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def batch(requests: int, width: int):
    return SimpleNamespace(batch_size=requests, input_ids=[0] * (requests * width))


def speculative_step(clock: timings.Clock, hand: Hand, requests: int = 2, width: int = 8) -> None:
    """2 ms draft, 0.5 ms head, 10 ms verify, 0.25 ms keys and values, 1 ms of everything else."""
    for phase, seconds in (("draft", 0.002), (None, 0.0005), ("verify", 0.010), (None, 0.00025)):
        if phase:
            clock.step(phase, batch(requests, width))
        with clock.span(phase or ("draft" if clock.stepping else "prefill_draft"), "cpu"):
            hand.now += seconds
    hand.now += 0.001


def test_counters_become_the_step_times_that_were_spent(hits):
    hand = Hand()
    clock = timings.Clock(hand)
    for _ in range(11):
        speculative_step(clock, hand)
    (point,) = counted.step_times(hits())
    assert (point.batch, point.width, point.steps) == (2, 8, 10)
    assert point.step_s == pytest.approx(0.01375)
    assert point.draft_s == pytest.approx(0.00275)
    assert point.verify_s == pytest.approx(0.010)
    assert point.overhead_s == pytest.approx(0.001)


def test_a_step_interrupted_by_a_prefill_or_another_batch_is_not_counted(hits):
    hand = Hand()
    clock = timings.Clock(hand)
    for requests in (1, 2, 1, 2):
        speculative_step(clock, hand, requests)
    speculative_step(clock, hand, 2)
    clock.step("prefill", SimpleNamespace(input_ids=[0] * 50))
    with clock.span("prefill", "cpu"):
        hand.now += 5.0
    speculative_step(clock, hand, 2)
    assert hits()["cost.step.2x8.n"] == 1  # the one pair of neighbours with the same batch
    assert "cost.step.1x8.n" not in hits()
    (prefill,) = counted.prefills(hits())
    assert (prefill.tokens, prefill.passes, prefill.seconds) == (64, 1, 5.0)


def test_plain_decoding_is_a_step_of_one_pass(hits):
    hand = Hand()
    clock = timings.Clock(hand)
    for _ in range(counted.MIN_STEPS + 1):
        clock.step("decode", batch(3, 1))
        with clock.span("decode", "cpu"):
            hand.now += 0.02
        hand.now += 0.005
    (point,) = counted.step_times(hits())
    assert (point.batch, point.width) == (3, 1)
    assert (point.step_s, point.verify_s, point.draft_s) == (pytest.approx(0.025), pytest.approx(0.02), None)


def test_too_few_steps_are_no_figure(hits):
    hand = Hand()
    clock = timings.Clock(hand)
    for _ in range(counted.MIN_STEPS):
        speculative_step(clock, hand)
    assert counted.step_times(hits()) == []


def test_passes_are_told_apart():
    def mode(**answers):
        names = ("is_target_verify", "is_decode")
        return SimpleNamespace(**{name: partial(answers.get, name, False) for name in names})

    def phase(drafter, **answers):
        return timings.phase_of(SimpleNamespace(is_draft_worker=drafter), SimpleNamespace(forward_mode=mode(**answers)))

    assert phase(True, is_target_verify=True) == "draft"
    assert phase(False, is_target_verify=True) == "verify"
    assert phase(False, is_decode=True) == "decode"
    assert phase(False) == "prefill"


def test_the_timing_patches_fit_this_sglang_and_can_be_taken_back():
    patches = PatchSet(timings.patches(), SGLANG_VERSION)
    assert len(patches.apply()) == 3
    patches.undo()


def test_a_server_without_timings_is_refused():
    with pytest.raises(SpecPilotError, match="timed no pass"):
        counted.hits_of({"ranks": [{"hits": {"speculative_steps": 4}}]})


def test_a_closed_loop_by_hand():
    requests = [Request(10, 5), Request(20, 3), Request(30, 3)]
    seconds = simulate(
        requests, 2, step=lambda n: 0.1 * n, tokens_per_step=2.0, prefill=lambda t: t / 100, request_s=0.0
    )
    # Prefills 0.1 and 0.2; both step (0.2): first has 2 left, second is done; third's prefill 0.3; both step (0.2).
    assert seconds == pytest.approx(0.1 + 0.2 + 0.2 + 0.3 + 0.2)


def test_time_outside_the_model_passes_while_others_run():
    two = [Request(0, 101), Request(0, 3)]
    kwargs = {"step": lambda n: 0.01, "tokens_per_step": 1.0, "prefill": lambda t: 0.0}
    alone, together = (simulate(two, c, request_s=0.05, **kwargs) for c in (1, 2))
    assert alone == pytest.approx(0.05 + 1.0 + 0.05 + 0.02)
    assert together == pytest.approx(0.05 + 1.0)


def play(case: Case, length: float = 3.0) -> Observation:
    """An observation that behaves exactly as the toy table says."""
    requests = tuple(Request(16 + 16 * i, 33) for i in range(6))
    loads = loads_of(table())
    if not case.block:
        return Observation(case, loads.plain_s(requests, case.concurrency), requests, 0)
    steps = round(sum(r.output - 1 for r in requests) / length)
    exact = sum(r.output - 1 for r in requests) / steps
    return Observation(case, loads.speculative_s(requests, case.concurrency, case.block, exact), requests, steps)


def test_held_out_loads_are_compared_and_fitted_ones_left_out():
    seen = [play(c) for c in cases_of([8, 4], [1, 4], "gsm8k")]
    seen += [play(Case(0, 2, "gsm8k", held_out=True)), play(Case(6, 2, "gsm8k", held_out=True))]
    plain, spec = compare(table(), seen)
    assert plain.error == pytest.approx(0, abs=1e-9)
    assert spec.error == pytest.approx(0, abs=1e-9)
    assert spec.speedup_error == pytest.approx(0, abs=1e-9)
    assert spec.transferred_length == pytest.approx(table().distribution("gsm8k", 6).length)
    assert len(compare(table(), seen, held_out=False)) == 6


def test_a_wrong_prediction_shows_as_an_error():
    case = Case(6, 2, "other", held_out=True)
    slow = play(case)
    (found,) = compare(table(), [Observation(case, 1.25 * slow.seconds, slow.requests, slow.steps)])
    assert found.error == pytest.approx(0.25)
    assert found.transferred is None
    assert found.speedup is None


def test_time_outside_the_passes_is_what_loads_without_concurrency_leave():
    seen = [play(Case(0, 1, "gsm8k")), play(Case(8, 1, "gsm8k"))]
    late = [Observation(o.case, o.seconds + 6 * 0.04, o.requests, o.steps) for o in seen]
    assert request_seconds(table(), late) == pytest.approx(0.04, abs=0.002)


def test_prefills_of_several_servers_are_averaged_by_passes():
    rows = [Prefill(64, 1, 0.04), Prefill(64, 3, 0.08, 0.01), Prefill(16, 2, 0.01)]
    small, large = merge(rows)
    assert (small.tokens, small.draft_s) == (16, 0.0)
    assert (large.passes, large.seconds, large.draft_s) == (4, pytest.approx(0.07), pytest.approx(0.01))


def safetensors(path, shapes) -> None:
    header = json.dumps({name: {"dtype": "BF16", "shape": s, "data_offsets": [0, 0]} for name, s in shapes.items()})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode())


def test_work_counts_the_head_once_a_pass_and_embedding_rows_never(tmp_path):
    target, draft = tmp_path / "t", tmp_path / "d"
    target.mkdir(), draft.mkdir()
    body = {"model.layers.0.mlp.up_proj.weight": [30, 10], "model.norm.weight": [10]}
    safetensors(draft / "model.safetensors", {"fc.weight": [10, 20]})
    safetensors(target / "model.safetensors", {**body, "model.embed_tokens.weight": [100, 10]})
    tied = work_of(target, draft)
    assert (tied.target_bytes, tied.draft_bytes) == (2 * 1300, 2 * 1200)
    assert (tied.target_flops, tied.draft_flops) == (2 * 1300, 2 * 1200)
    safetensors(
        target / "model.safetensors", {**body, "model.embed_tokens.weight": [100, 10], "lm_head.weight": [100, 10]}
    )
    assert work_of(target, draft) == tied
    (target / "model.safetensors").write_bytes(b"abc")
    with pytest.raises(SpecPilotError, match="header"):
        work_of(target, draft)
