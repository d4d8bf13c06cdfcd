"""What fails a night and what does not."""

from __future__ import annotations

import math

import pytest
from nightly_fakes import Fake, Quiet, config

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.nightly import night
from specpilot_sglang.eval.nightly.intervals import Spread, ratio
from specpilot_sglang.eval.nightly.judge import sign_test
from specpilot_sglang.eval.nightly.plan import block_keys


@pytest.fixture(autouse=True)
def same_code(monkeypatch):
    monkeypatch.setattr(night, "code_name", lambda: "abc")
    monkeypatch.setattr(night.provenance, "collect", lambda *args, **facts: facts)  # it starts programs
    monkeypatch.setattr(night.report, "write", lambda document, folder: {})  # plots take most of a fake night


def run(folder, runner=None, **changes):
    place = night.Place(folder / "history.sqlite", folder / "out")
    return night.run(config(**changes), place, Quiet(), runner=runner or Fake(), fresh=True).document


def checks(document, state):
    return {c["rule"]: c["what"] for c in document["deployments"][0]["checks"] if c["state"] == state}


def test_a_good_night_passes_every_rule(tmp_path):
    document = run(tmp_path)
    assert document["state"] == "ok"
    assert set(checks(document, "ok")) == {
        *("measured", "speed against stock", "accept length", "token forcing", "accuracy on gsm8k", "history")
    }


@pytest.mark.parametrize(
    ("fault", "rule", "word"),
    [
        (Fake(speed={"specpilot": 0.7}), "speed against stock", "slower"),
        (Fake(accept={"specpilot": 0.9}), "accept length", "2.880"),
        (Fake(mismatches={"specpilot": 30}), "token forcing", "mismatches"),
        (Fake(mismatches={"specpilot": 1}, margin=3.0), "token forcing", "near tie"),
        (Fake(right={"ar": 14, "stock": 14, "specpilot": 8}), "accuracy on gsm8k", "6 lost"),
        (Fake(problems=("a rank's hot-path counters are zero",)), "measured", "counters"),
        (Fake(failing={"specpilot": 2}), "measured", "exit code 1"),
    ],
)
def test_each_fault_fails_the_night_by_its_own_rule(tmp_path, fault, rule, word):
    document = run(tmp_path, fault, rounds=4, change_points={"absolute_speed": False})
    assert document["state"] == "regression"
    found = checks(document, "regression")
    assert rule in found
    assert word in found[rule]


def test_a_loss_within_the_noise_of_launches_passes(tmp_path):
    document = run(tmp_path, Fake(speed={"specpilot": 0.75}, noise=0.03))
    (found,) = [c for c in document["deployments"][0]["comparisons"] if c["base"] == "stock"]
    assert found["value"] < 0.98
    assert found["high"] > 1
    assert document["state"] == "ok"


def test_faults_that_stock_shares_pass(tmp_path):
    shared = Fake(mismatches={"specpilot": 30, "stock": 30}, accept={"specpilot": 0.9, "stock": 0.9})
    assert run(tmp_path, shared)["state"] == "ok"


def test_a_server_that_starts_at_the_second_attempt_is_no_failure(tmp_path):
    runner = Fake(failing={"specpilot": 1})
    assert run(tmp_path, runner)["state"] == "ok"
    assert (tmp_path / "out/runs/00001/small-specpilot-0-2/block.json").exists()


def test_without_ar_or_stock_there_is_no_verdict(tmp_path):
    with pytest.raises(SpecPilotError, match="small-stock-0 could not be measured"):
        run(tmp_path, Fake(failing={"stock": 2}))


def test_one_round_cannot_judge_speed_until_the_history_knows_the_noise(tmp_path):
    alone = run(tmp_path / "a", Fake(speed={"specpilot": 0.7}), rounds=1)
    assert "one launch" in checks(alone, "not judged")["speed against stock"]
    for seed in range(3):
        run(tmp_path / "b", Fake(seed=seed))
    later = run(tmp_path / "b", Fake(speed={"specpilot": 0.7}), rounds=1)
    assert "slower" in checks(later, "regression")["speed against stock"]


def nights(folder, speeds, **changes):
    documents = [run(folder, Fake(seed=n, speed={"specpilot": s}), **changes) for n, s in enumerate(speeds)]
    return documents[-1]


def test_a_lasting_drop_fails_although_the_plugin_is_still_faster_than_stock(tmp_path):
    last = nights(tmp_path, [1.0] * 8 + [0.9] * 2)
    found = checks(last, "regression")
    assert set(found) == {"history"}
    assert "since run 9" in found["history"]


def test_a_rise_is_a_note_and_noise_is_nothing(tmp_path):
    up = nights(tmp_path / "up", [1.0] * 6 + [1.2] * 2)
    assert up["state"] == "ok"
    assert any("speedup" in c["what"] and "+" in c["what"] for c in up["deployments"][0]["checks"])
    flat = nights(tmp_path / "flat", [1.0] * 10)
    assert flat["state"] == "ok"
    assert checks(flat, "note") == {}


def test_an_old_drop_is_history(tmp_path):
    rules = {"recent_runs": 3}
    assert nights(tmp_path, [1.0] * 6 + [0.9] * 3, change_points=rules)["state"] == "regression"
    assert nights(tmp_path, [0.9] * 1, change_points=rules)["state"] == "ok"


def test_a_slower_machine_is_no_regression_of_ratios(tmp_path):
    slow = {"ar": 0.8, "stock": 0.8, "specpilot": 0.8}
    for absolute, state in ((False, "ok"), (True, "regression")):
        for n in range(8):
            document = run(
                tmp_path / str(absolute),
                Fake(seed=n, speed=slow if n > 5 else {}),
                change_points={"absolute_speed": absolute},
            )
        assert document["state"] == state


def test_other_settings_start_another_history(tmp_path):
    for n in range(6):
        run(tmp_path, Fake(seed=n))
    other = run(tmp_path, Fake(speed={"specpilot": 0.9}), load={"suites": {"gsm8k": 2}, "max_new_tokens": 128})
    assert other["state"] == "ok"
    assert {len(s["points"]) for s in other["deployments"][0]["history"]} == {1}


def test_a_machine_that_slows_down_between_rounds_does_not_blur_the_ratios(tmp_path):
    document = run(tmp_path, Fake(drift=-0.3), rounds=3)
    for c in document["deployments"][0]["comparisons"]:
        assert c["launch_noise"] < 0.03


def test_rounds_alternate_so_that_drift_favours_no_arm():
    arms = [k.arm for k in block_keys(config(rounds=3))]
    assert arms == ["ar", "stock", "specpilot", "specpilot", "stock", "ar", "ar", "stock", "specpilot"]


def test_the_interval_is_students_and_earlier_noise_narrows_it():
    logs = [math.log(1.10), math.log(1.12)]
    alone = ratio(logs)
    mean, half = math.log(1.1 * 1.12) / 2, 12.7062 * abs(logs[1] - logs[0]) / math.sqrt(2) / math.sqrt(2)
    assert (alone.low, alone.high) == pytest.approx((math.exp(mean - half), math.exp(mean + half)), rel=1e-4)
    pooled = ratio(logs, Spread(squares=20 * 0.01**2, freedom=20))
    assert alone.low < pooled.low < pooled.value < pooled.high < alone.high
    assert pooled.value == alone.value


def test_the_interval_holds_its_level_with_two_rounds():
    import random

    rng = random.Random(3)
    missed = 0
    for _ in range(2000):
        logs = [rng.gauss(0.1, 0.01) for _ in range(2)]
        r = ratio(logs)
        missed += not math.log(r.low) <= 0.1 <= math.log(r.high)
    assert 0.03 < missed / 2000 < 0.07


def test_the_sign_test_by_hand():
    assert sign_test(0, 5) == 1.0
    assert sign_test(5, 0) == pytest.approx(1 / 32)
    assert sign_test(3, 1) == pytest.approx(5 / 16)
