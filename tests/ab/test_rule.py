"""The accept rule and its noise: what accepts, what rejects, and how often it errs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab import bounds
from specpilot_sglang.eval.ab.futility import chance_of_acceptance
from specpilot_sglang.eval.ab.latency import check_latencies
from specpilot_sglang.eval.ab.noise import Noise, Spread
from specpilot_sglang.eval.ab.order import order
from specpilot_sglang.eval.ab.rule import Action, Rule, decide
from specpilot_sglang.eval.ab.simulate import Scenario, drifting, normal, rates, stalls
from specpilot_sglang.eval.ab.stalls import hidden_loss

QUIET = Noise((0.001, -0.001) * 4).value


def gains(mean: float, sd: float, count: int, seed: int = 0) -> list[float]:
    """Values with exactly this mean and sample standard deviation."""
    raw = np.random.default_rng(seed).normal(size=count)
    return list(mean + sd * (raw - raw.mean()) / raw.std(ddof=1)) if count > 1 else [mean] * count


def test_bound_is_students_t():
    values = gains(0.03, 0.01, 8)
    expected = 0.03 - stats.t.ppf(0.985, 7) * 0.01 / math.sqrt(8)
    assert bounds.lower_t(values, 0.015) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mean", "sd", "count", "action"),
    [
        (0.08, 0.01, 8, Action.ACCEPT),
        (0.08, 0.01, 7, Action.CONTINUE),  # no look before 8
        (0.05, 0.01, 8, Action.CONTINUE),  # rare stalls could make up for it, and may still show
        (0.02, 0.01, 8, Action.CONTINUE),
        (0.012, 0.01, 12, Action.REJECT),
        (0.03, 0.01, 12, Action.ACCEPT),
        (0.009, 0.0001, 12, Action.REJECT),  # certain, but below the smallest gain of interest
        (-0.10, 0.01, 2, Action.REJECT),  # hopeless
        (0.0, 0.02, 5, Action.REJECT),
        (0.01, 0.02, 5, Action.CONTINUE),
    ],
)
def test_decision(mean, sd, count, action):
    values = gains(mean, sd, count)
    # The order must not let a shorter prefix decide first, unless the case is about that.
    values.sort(key=lambda v: abs(v - mean), reverse=True)
    assert decide(values, QUIET).action is action


def test_two_blocks_that_agree_by_chance_are_not_hopeless_on_a_host_whose_blocks_do_not():
    values = [-0.01, -0.0101]
    assert decide(values, QUIET).action is Action.REJECT
    assert decide(values, QUIET, known=Spread(0.0, 0.05, 8)).action is Action.CONTINUE
    assert decide(values, QUIET, Rule(futility_from=0)).action is Action.CONTINUE


def test_chance_of_acceptance_is_the_share_of_simulated_trials_that_end_well():
    values, known = [0.02, 0.05, 0.03], Spread(0.0, 0.03, 8)
    chance = chance_of_acceptance(values, 0.02, last=12, alpha=0.045, known=known)
    rng, freedom = np.random.default_rng(3), 2 + 7
    square = (2 * np.var(values, ddof=1) + 7 * 0.03**2) / freedom
    sd = np.sqrt(freedom * square / rng.chisquare(freedom, 40_000))  # a flat prior's posterior
    mean = rng.normal(np.mean(values), sd / math.sqrt(3))
    final = (3 * np.mean(values) + rng.normal(9 * mean, 3 * sd)) / 12
    need = 0.02 + stats.t.ppf(0.955, 11) * math.sqrt(square / 12)
    assert chance == pytest.approx(np.mean(final > need), abs=0.01)


def test_noise_of_the_host_raises_the_threshold():
    values = gains(0.08, 0.01, 8)
    assert decide(values, 0.0).action is Action.ACCEPT
    assert decide(values, 0.03).action is Action.CONTINUE
    assert Rule().threshold(0.005) == pytest.approx(math.log(1.01) + 0.01)


def test_decision_is_the_first_look_that_accepts_however_many_blocks_follow():
    accepted = gains(0.08, 0.005, 8)
    assert decide([*accepted, *[-0.2] * 4], QUIET).blocks == 8
    assert decide([*accepted, *[-0.2] * 4], QUIET).action is Action.ACCEPT


def test_blocks_after_the_last_look_change_nothing():
    values = gains(0.011, 0.01, 12)
    assert decide(values, QUIET).action is Action.REJECT
    assert decide([*values, *[0.3] * 20], QUIET) == decide(values, QUIET)


def test_deciding_block_by_block_equals_deciding_at_once():
    rng = np.random.default_rng(5)
    for _ in range(200):
        values = [float(v) for v in rng.normal(0.02, 0.012, 12)]
        step = next(d for n in range(13) if (d := decide(values[:n], QUIET)).action is not Action.CONTINUE)
        assert decide(values, QUIET) == step


def test_a_confirmation_goes_on_until_rare_stalls_could_not_make_up_for_the_gain():
    rule = Rule().confirming(gains(0.02, 0.0001, 12))
    values = gains(0.02, 0.0001, 24)
    decision = decide(values, QUIET, rule)
    assert (decision.action, decision.blocks) == (Action.ACCEPT, 22)
    assert hidden_loss(12 + 22, rule.stall) < 0.02 < hidden_loss(12 + 21, rule.stall)
    assert decide(gains(0.1, 0.002, 4), QUIET, Rule().confirming(gains(0.1, 0.002, 8))).action is Action.ACCEPT
    assert decide(gains(0.03, 0.002, 4), QUIET, Rule().confirming(gains(0.03, 0.002, 12))).action is Action.CONTINUE
    # A stall among the further blocks ends it.
    stalled = decide([*values[:14], -0.2, *values[15:]], QUIET, rule)
    assert (stalled.action, stalled.blocks) == (Action.REJECT, 15)
    # Too small a gain for all blocks that there may be, and too few prompts for further blocks.
    small = Rule().confirming(gains(0.015, 0.001, 12))
    assert decide(gains(0.015, 0.001, 12), QUIET, small).blocks == 12
    few = Rule().confirming(gains(0.02, 0.002, 12), most=14)
    rejected = decide(values, QUIET, few)
    assert (rejected.action, rejected.blocks, few.max_blocks) == (Action.REJECT, 12, 14)
    assert "rare stalls" in rejected.reason
    fewer = Rule().confirming(gains(0.1, 0.002, 8), most=10)
    assert (fewer.looks, fewer.extra) == ((4, 8), 2)
    assert decide(gains(0.1, 0.1, 8), QUIET, fewer).action is Action.REJECT
    assert Rule().confirming(most=3).max_blocks == 4


def test_deciding_a_confirmation_block_by_block_equals_deciding_at_once():
    rng = np.random.default_rng(6)
    for _ in range(200):
        rule = Rule().confirming([float(v) for v in rng.normal(0.025, 0.004, 12)])
        values = [float(v) for v in rng.normal(0.025, 0.004, rule.max_blocks)]
        step = next(d for n in range(25) if (d := decide(values[:n], QUIET, rule)).action is not Action.CONTINUE)
        assert decide(values, QUIET, rule) == step


@pytest.mark.parametrize(
    "settings",
    [
        {"looks": (4, 8), "alphas": (0.01, 0.04)},
        {"looks": (8, 12), "alphas": (0.03, 0.03)},
        {"looks": (12, 8), "alphas": (0.01, 0.01)},
        {"looks": (8,), "alphas": (0.01, 0.01)},
        {"min_gain": -0.01},
    ],
)
def test_rules_that_would_accept_too_much_are_refused(settings):
    with pytest.raises(SpecPilotError):
        Rule(**settings)


def test_block_without_a_speed_is_an_error_not_a_decision():
    with pytest.raises(SpecPilotError, match="finite"):
        decide([0.1] * 7 + [math.nan], QUIET)


def test_noise_is_the_bias_that_an_aa_shows_or_cannot_rule_out():
    assert Noise(tuple(gains(0.0, 0.02, 16))).value == pytest.approx(0.02 / 4)
    assert Noise(tuple(gains(-0.03, 0.02, 16))).value == pytest.approx(0.03)
    with pytest.raises(SpecPilotError, match="7 blocks"):
        Noise((0.0,) * 7)
    noise = Noise(tuple(gains(0.001, 0.02, 9)), {"itl_p99_s": tuple(gains(0, 0.1, 9))}, "host", "regime")
    assert Noise.from_json(noise.to_json()) == noise


def test_orders_alternate_within_each_pair_of_blocks_and_depend_on_the_seed():
    first = [order(n, "a", "b", 1)[0] for n in range(40)]
    assert all(first[n] != first[n + 1] for n in range(0, 40, 2))
    assert first.count("a") == 20
    assert len({tuple(order(n, "a", "b", seed)[0] for n in range(0, 40, 2)) for seed in range(6)}) == 6


def test_worse_tail_is_held_against_a_candidate_only_beyond_noise():
    noise = Noise(tuple(gains(0, 0.01, 8)), {"itl_p99_s": tuple(gains(0, 0.05, 8))})
    (fine,) = check_latencies({"itl_p99_s": gains(0.03, 0.2, 8)}, noise)
    (worse,) = check_latencies({"itl_p99_s": [0.0] * 6 + [0.9, 0.9]}, noise)  # stalls in two blocks of eight
    (unknown,) = check_latencies({"ttft_p99_s": [0.0] * 8}, noise)
    assert (fine.ok, worse.ok, unknown.ok) == (True, False, False)
    assert "beyond" in worse.reason
    quiet = Noise((0.0,) * 8, {"itl_p99_s": (0.0,) * 8})
    assert check_latencies({"itl_p99_s": [0.015] * 8}, quiet)[0].ok


def test_bca_and_sign_flips_beside_the_bound():
    values = gains(0.02, 0.01, 10)
    assert 0.01 < bounds.lower_bca(values) < 0.02
    assert bounds.sign_flip_p([0.01] * 8) == pytest.approx(1 / 256)
    assert bounds.sign_flip_p(gains(0.0, 0.01, 8)) > 0.1
    assert math.isnan(bounds.lower_bca([0.01] * 8))


#: Simulated candidates a scenario; 5% of them plus three Monte Carlo standard errors may be accepted.
CANDIDATES = 2000
ALLOWED = 0.05 + 3 * math.sqrt(0.05 * 0.95 / CANDIDATES)


@pytest.mark.parametrize(
    ("stock", "candidate"),
    [
        *[(normal(sd), normal(sd)) for sd in (0.003, 0.01, 0.025)],
        (stalls(0.003, 0.05, 0.2, both=True), stalls(0.003, 0.05, 0.2, both=True)),
        (normal(0.01), stalls(0.01, 0.1, 0.1, both=False)),
        (drifting(0.003, 0.005), drifting(0.003, 0.005)),
    ],
    ids=["0.3%", "1%", "2.5%", "stalls of the host", "stalls of the candidate", "drift"],
)
def test_null_candidates_are_rarely_accepted(stock, candidate):
    found = rates(Scenario("null", stock, candidate), CANDIDATES, 8, seed=11)
    assert found.accepted <= ALLOWED
    assert found.accepted <= 0.01  # what the threshold above zero makes of it


def test_a_candidate_that_rarely_stalls_is_promoted_in_five_percent_at_most():
    """2% faster, loses 20% in one launch of ten: a single trial cannot tell it from a true gain, see `stalls`."""
    found = rates(Scenario("rare", normal(0.003), stalls(0.003, 0.1, 0.2, both=False)), CANDIDATES, 20, seed=14)
    assert found.confirmed <= ALLOWED
    assert found.accepted <= 0.37  # 28% show no stall; some show one that is too small to matter


def test_looks_together_spend_no_more_than_five_percent():
    edge = Rule(noise_factor=0, futility_from=0)  # a gain exactly at the threshold, so that only alpha protects
    found = rates(Scenario("edge", normal(0.01), normal(0.01, edge.threshold(0))), CANDIDATES, 8, edge, seed=12)
    assert 0.02 < found.accepted <= ALLOWED


def test_candidates_without_a_gain_are_given_up_after_a_few_blocks():
    for sd in (0.003, 0.03):
        found = rates(Scenario("null", normal(sd), normal(sd)), 300, 8, seed=16)
        assert found.accepted <= 0.01
        assert found.mean_blocks < 3.5  # nearly nine without the spread of the A/A


def test_three_percent_is_found_within_twelve_blocks():
    sd = 0.01 / math.sqrt(2)  # 1% between blocks
    found = rates(Scenario("gain", normal(sd), normal(sd, math.log(1.03)), null=False), 1000, 20, seed=13)
    assert found.accepted >= 0.9
    assert found.mean_blocks <= 12
    assert found.confirmed >= 0.9
    assert found.mean_confirming <= 12
