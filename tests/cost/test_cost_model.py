"""The cost model's arithmetic: distributions, fits, cycles of one and two levels, ceilings and gaps."""

from __future__ import annotations

import json

import pytest

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.cost.distribution import AcceptDistribution
from specpilot_sglang.loop.cost.fit import fit
from specpilot_sglang.loop.cost.gaps import gaps
from specpilot_sglang.loop.cost.predict import Setting, predict, two_level_tokens
from specpilot_sglang.loop.cost.table import CostTable, Prefill, Rates, StepTime, Work, load_table


def truth(batch: float, width: float, fixed: float, token: float) -> float:
    return fixed + 0.0002 * batch + token * batch * width


def table(**changes) -> CostTable:
    """Times that follow the model exactly, so that predictions must be exact too."""
    spec = []
    for batch in (1, 4):
        for width in (4, 8):
            draft, verify = truth(batch, width, 0.002, 0.0001), truth(batch, width, 0.01, 0.0003)
            spec.append(StepTime(batch, width, 100, draft + verify + 0.001, draft, verify))
    ar = tuple(StepTime(b, 1, 100, truth(b, 1, 0.011, 0.0003), None, truth(b, 1, 0.010, 0.0003)) for b in (1, 4))
    base = {
        "name": "toy",
        "block": 8,
        "ar": ar,
        "spec": tuple(spec),
        "prefill": (Prefill(16, 3, 0.02), Prefill(64, 3, 0.05)),
        "accept": {"gsm8k": {8: (30, 20, 15, 10, 10, 5, 5, 5), 4: (40, 30, 20, 10)}},
        "work": Work(1e6, 2e5, 2e6, 4e5),
        "rates": Rates(1e9, 1e9),
    }
    return CostTable(**{**base, **changes})


def test_accept_length_is_the_mean_plus_the_bonus():
    assert AcceptDistribution.of_counts([1, 1, 2]).length == pytest.approx(1 + 1.25)


def test_a_smaller_block_cuts_long_accepts_and_keeps_short_ones():
    whole = AcceptDistribution.of_counts([4, 3, 2, 1])
    assert whole.truncated(3).shares == pytest.approx((0.4, 0.3, 0.3))
    assert whole.truncated(3).length == pytest.approx(1.9)
    assert whole.truncated(9) == whole


def test_a_measured_block_has_its_own_distribution_and_others_are_cut_from_a_larger_one():
    assert table().distribution("gsm8k").shares[0] == pytest.approx(0.3)
    assert table().distribution("gsm8k", 4).shares == pytest.approx((0.4, 0.3, 0.2, 0.1))
    assert table().distribution("gsm8k", 6).shares == pytest.approx((0.3, 0.2, 0.15, 0.1, 0.1, 0.15))
    assert table().distribution("gsm8k", 3).shares == pytest.approx((0.4, 0.3, 0.3))
    assert table().measured_accept("gsm8k", 4)
    assert not table().measured_accept("gsm8k", 6)
    for suite, block in (("gsm8k", 9), ("other", 8)):
        with pytest.raises(SpecPilotError, match="gsm8k at 8, gsm8k at 4"):
            table().distribution(suite, block)


@pytest.mark.parametrize("length", [1.0, 2.5, 3.9, 7.9])
def test_a_distribution_made_of_an_accept_length_has_it(length):
    made = AcceptDistribution.of_length(length, 8)
    assert made.length == pytest.approx(length, abs=1e-6)
    assert sum(made.shares) == pytest.approx(1)


@pytest.mark.parametrize("counts", [[], [0, 0], [3, -1]])
def test_counts_that_are_none_are_refused(counts):
    with pytest.raises(SpecPilotError, match="counts"):
        AcceptDistribution.of_counts(counts)


def test_the_fit_finds_the_parts_of_a_pass_and_no_negative_one():
    points = [(b, w, truth(b, w, 0.01, 0.0003)) for b in (1, 2, 4) for w in (1, 4, 8)]
    found = fit(points)
    assert (found.fixed, found.per_request, found.per_token) == pytest.approx((0.01, 0.0002, 0.0003))
    assert found.worst < 1e-9
    falling = fit([(1, 8, 0.02), (4, 8, 0.019)])  # noise must not become a negative cost of a request
    assert min(falling.fixed, falling.per_request, falling.per_token) >= 0


@pytest.mark.parametrize(("batch", "block"), [(2, 6), (1, 5), (8, 8)])
def test_one_level_at_a_setting_that_was_not_measured(batch, block):
    accept = table().distribution("gsm8k", block)
    found = predict(table(), Setting(accept, block, batch))
    step = truth(batch, block, 0.002, 0.0001) + truth(batch, block, 0.01, 0.0003) + 0.001
    assert found.cycle_s == pytest.approx(step)
    assert found.speedup == pytest.approx(accept.length / (step / truth(batch, 1, 0.011, 0.0003)))
    assert found.tok_s(batch) == pytest.approx(batch * accept.length / step)


def test_a_tree_pays_for_its_nodes_in_verification_only():
    accept = AcceptDistribution.of_counts([1, 1, 1, 1, 4])
    chain, tree = (predict(table(), Setting(accept, 8, 1, budget)) for budget in (None, 32))
    assert tree.draft_s == chain.draft_s
    assert tree.verify_s == pytest.approx(truth(1, 32, 0.01, 0.0003))


def test_two_levels_cost_r_cheap_rounds_one_draft_more_and_one_wide_exact_pass():
    accept = AcceptDistribution.of_counts([0, 0, 1])  # always 3 tokens
    found = predict(table(), Setting(accept, 8, 1, cheap_rounds=2, cheap_ratio=0.6))
    draft, verify = truth(1, 8, 0.002, 0.0001), truth(1, 8, 0.01, 0.0003)
    exact = truth(1, 8 + 2 * 3, 0.01, 0.0003)
    assert found.tokens == pytest.approx(9)  # (r + 1) tau when the views always agree
    assert found.cycle_s == pytest.approx(3 * draft + 2 * 0.6 * verify + exact + 3 * 0.001)


def test_disagreement_of_the_cheap_view_costs_tokens_and_never_the_exact_passes_own():
    assert two_level_tokens(3.0, 1, 1.0) == pytest.approx(6.0)
    values = [two_level_tokens(3.0, 1, g) for g in (1.0, 0.99, 0.9, 0.5, 1e-9)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(1.0)  # nothing kept: one token, as of a plain step
    by_hand = 0.9 + 0.81 + 0.729 + 0.729 * 3 + (1 - 0.729)
    assert two_level_tokens(3.0, 1, 0.9) == pytest.approx(by_hand)


def test_gaps_come_largest_first_with_the_ceiling_that_binds():
    terms = gaps(table())
    assert [t.loss_s for t in terms] == sorted((t.loss_s for t in terms), reverse=True)
    by_name = {t.name: t for t in terms}
    assert set(by_name) == {"t_AR", "t_draft", "t_verify", "t_overhead"}
    verify = by_name["t_verify"]
    assert verify.width == 8
    assert (verify.ceiling_s, verify.bound) == (pytest.approx(0.016), "FLOP")  # 8 tokens x 2e6 FLOP at 1e9
    assert verify.gap_s == pytest.approx(verify.seconds - 0.016)
    plain = by_name["t_AR"]
    assert plain.overhead_s == pytest.approx(0.001)
    assert by_name["t_overhead"].overhead_s == pytest.approx(0.001)


def test_gaps_of_a_table_without_split_steps_or_rates():
    whole = tuple(StepTime(p.batch, p.width, 0, p.step_s) for p in table().spec)
    terms = {t.name: t for t in gaps(table(spec=whole))}
    assert set(terms) == {"t_step", "t_AR"}
    assert terms["t_step"].ceiling_s is not None
    assert not terms["t_step"].timed
    assert all(t.gap_s is None for t in gaps(table(rates=None)) if t.name != "t_overhead")
    with pytest.raises(SpecPilotError, match="apart"):
        predict(table(spec=whole), Setting(AcceptDistribution.of_counts([1, 1]), 8, cheap_rounds=1))


def test_gaps_at_a_place_that_was_not_measured_are_refused():
    with pytest.raises(SpecPilotError, match=r"measured .*1x4, 1x8, 4x4, 4x8"):
        gaps(table(), batch=3)


def test_a_table_survives_the_file(tmp_path):
    table().save(tmp_path / "cost.json")
    again = load_table(tmp_path / "cost.json")
    assert again == table()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"kind": "specpilot cost table", "schema": 99}',
        '{"kind": "specpilot cost table", "schema": 2, "name": "x", "block": 8, "ar": [], "spec": []}',
        '{"kind": "specpilot cost table", "schema": 2, "name": "x", "block": 8, "ar": [{"batch": 1}], "spec": []}',
    ],
)
def test_a_file_that_is_no_table_is_refused_by_name(tmp_path, text):
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(SpecPilotError, match=r"cost\.json"):
        load_table(path)


def test_the_packaged_h200_table_says_what_it_is_and_gives_the_measured_speedup(cli):
    shown = cli("cost", "show", "h200-qwen3.8-27b-dflash2", "--json")
    assert shown.code == 0
    labels = " ".join(json.loads(shown.out)["labels"])
    assert "SIMULATED ACCEPTANCE" in labels
    assert "random weights" in labels
    asked = cli("cost", "predict", "h200-qwen3.8-27b-dflash2", "--accept-length", "4", "--concurrency", "4", "--json")
    assert json.loads(asked.out)["speedup"] == pytest.approx(807.6 / 266.5, rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "nothing"), "no packaged cost table"),
        (("show", "missing.json"), "cannot read"),
        (("predict", "h200-qwen3.8-27b-dflash2"), "accept distribution once"),
        (("predict", "h200-qwen3.8-27b-dflash2", "--accept", "a,b"), "no counts"),
        (("predict", "h200-qwen3.8-27b-dflash2", "--accept-length", "9"), "accept length"),
        (("predict", "h200-qwen3.8-27b-dflash2", "--suite", "gsm8k"), "no accept distribution"),
        (("measure", "--held-out", "6:2"), "no held-out setting"),
        (("measure", "--model", "x"), "belong together"),
    ],
)
def test_bad_requests_end_with_one_line(cli, arguments, message):
    done = cli("cost", *arguments)
    assert done.code == 2
    assert message in done.err
