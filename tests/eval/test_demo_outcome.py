"""The demonstration judges by its rule, and its report holds what was measured and nothing from elsewhere."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from specpilot_sglang.cli import demo
from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.demo import preflight, report, runner
from specpilot_sglang.eval.demo.outcome import ArmOutcome, Outcome, attestation_problems, packed_bits
from specpilot_sglang.eval.demo.plan import Plan
from specpilot_sglang.eval.forcing import Mismatch, Verdict
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.provenance import busy_warning
from specpilot_sglang.eval.records import Request

ATTESTATION = {
    "overlay": {"name": "toy", "sha256": "ab" * 32},
    "ranks": [{"mechanisms": {"w12": {"bits_per_weight": 12.06}}, "hits": {"speculative_steps": 9}}],
}


def requests(seconds: float, steps: int) -> list[Request]:
    return [
        Request(f"{suite}/{n}", suite, [1, 2], list(range(21)), "length", seconds * (1 + n), steps)
        for suite in ("gsm8k", "mt-bench")
        for n in range(2)
    ]


def forcing(mismatches: int, margin: float | None = 0.05, error: str = "", positions: int = 1000) -> ForcingReport:
    rows = [Mismatch("gsm8k/0", n, 5, 6, margin, by_prefill=False) for n in range(mismatches)]
    return ForcingReport([Verdict("gsm8k/0", "gsm8k", positions, 1 + mismatches, rows, error)])


def outcome(plugin: ForcingReport, stock: ForcingReport | None = None, dtype: str = "bfloat16", **kwargs) -> Outcome:
    arms = [
        ArmOutcome("ar", "AR", ["python"], 1.0, requests(1.0, 0), server={"dtype": dtype}),
        ArmOutcome("stock", "stock DFLASH", ["python"], 1.0, requests(0.5, 10), stock or forcing(0)),
        ArmOutcome("specpilot", "specpilot", ["python"], 1.0, requests(0.4, 8), plugin, ATTESTATION),
    ]
    return Outcome(arms, dtype, **kwargs)


def test_speed_is_tokens_over_wall_time_and_accept_length_per_step():
    found = outcome(forcing(0))
    suite = found.arms[1].suites()[0]
    assert (suite.tokens, suite.seconds) == (42, 1.5)
    assert suite.speed == pytest.approx(28.0)
    assert suite.median == pytest.approx((42.0 + 21.0) / 2)
    assert suite.accept_length == pytest.approx(2.0)
    assert math.isnan(found.arms[0].suites()[0].accept_length)
    assert found.speedup(found.arms[1], "gsm8k") == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("plugin", "stock", "accepted"), [(5, 0, True), (6, 0, False), (15, 10, True), (16, 10, False)]
)
def test_low_precision_rate_may_exceed_stocks_by_half_a_point(plugin, stock, accepted):
    assert (not outcome(forcing(plugin), forcing(stock)).problems()) == accepted


def test_float32_excuses_ties_only():
    assert not outcome(forcing(1, margin=1e-6), dtype="float32").problems()
    assert outcome(forcing(1, margin=1e-3), forcing(9), dtype="float32").problems()
    assert outcome(forcing(1, margin=None), dtype="float32").problems()


def test_exact_pass_counts():
    strict = ArmOutcome("specpilot", "specpilot float32", [], 1.0, requests(1.0, 8), forcing(1, margin=0.2))
    assert outcome(forcing(0), exact=[strict]).problems() == ["float32 pass: 1 mismatches against AR"]


def test_what_was_not_judged_is_not_accepted():
    assert "could not be judged" in outcome(forcing(0, error="aborted")).problems()[0]
    assert outcome(forcing(0, positions=0)).problems() == ["no position was judged"]
    without = outcome(forcing(0))
    assert Outcome(without.arms[:2], "bfloat16").problems() == ["the plugin was not measured"]
    plain = ArmOutcome("specpilot", "specpilot", [], 1.0, requests(1.0, 8), forcing(0), None)
    assert Outcome([*without.arms[:2], plain], "bfloat16").problems() == ["the plugin's server does not attest"]
    lost = ArmOutcome("ar", "AR", [], 1.0, [Request("a", "s", [1], [], "", error="x")])
    assert "AR: 1 requests failed" in Outcome([lost, *without.arms[1:]], "bfloat16").problems()


@pytest.mark.parametrize(
    "attestation", [None, {}, {"ranks": []}, {"ranks": [{"mechanisms": {}}]}, {"ranks": [{"mechanisms": {"w12": {}}}]}]
)
def test_bits_are_those_attested(attestation):
    assert packed_bits(attestation) is None
    assert packed_bits(ATTESTATION) == 12.06
    assert outcome(forcing(0)).arms[2].bits_per_weight() == 12.06
    assert outcome(forcing(0), dtype="float32").arms[0].bits_per_weight() == 32.0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"consistent": False}, "different"),
        ({"simulated_acceptance": {"SGLANG_SIMULATE_ACC_LEN": "4"}}, "simulated"),
        ({"ranks": [{"hits": {"speculative_steps": 0}}]}, "zero"),
        ({"ranks": [{"hits": {"speculative_steps": 5}}, {"hits": {}}]}, "zero"),
        ({"ranks": []}, "zero"),
    ],
)
def test_attestation_must_show_that_the_plugin_ran(change, problem):
    assert attestation_problems(ATTESTATION) == []
    assert problem in attestation_problems({**ATTESTATION, **change})[0]


def test_busy_machine_is_said():
    assert busy_warning(0.4, 2) == ""
    assert "load 6.0 on 2 cores" in busy_warning(6.0, 2)


def test_report_is_self_contained_and_complete(tmp_path):
    found = outcome(forcing(3), forcing(2, margin=None))
    facts = {"command": "specpilot demo <script>alert(1)</script>"}
    page, data = report.write(found, report.to_json(found, facts, "busy machine"), tmp_path / "deep")
    html = page.read_text()
    assert re.findall(r'(?:src|href)="(?!data:)[^"]*"', html) == []
    assert "http" not in html
    assert "<script>" not in html
    assert 'src="data:image/png;base64,iVBOR' in html
    for text in ("stock DFLASH", "gsm8k", "12.06", "bfloat16", "0.05000", "hold", "busy machine"):
        assert text in html
    document = json.loads(data.read_text())
    assert document["accepted"] is True
    assert document["arms"][2]["forcing"]["mismatches_counted"] == 3
    assert document["arms"][2]["attestation"] == ATTESTATION
    assert [p.name for p in sorted((tmp_path / "deep").iterdir())] == ["report.html", "report.json"]


def test_report_of_a_rejection_says_so(tmp_path):
    found = outcome(forcing(50))
    page, _ = report.write(found, report.to_json(found, {}), tmp_path)
    assert "Not accepted:" in page.read_text()


def test_report_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    found = outcome(forcing(0))
    with pytest.raises(SpecPilotError, match="--out"):
        report.write(found, report.to_json(found, {}), tmp_path / "file" / "x")


def test_missing_packages_are_named_before_any_server_starts(monkeypatch):
    monkeypatch.setattr(report, "find_spec", lambda name: None if name == "jinja2" else object())
    with pytest.raises(SpecPilotError, match=r"jinja2.*\[demo\]"):
        report.require_packages()


def test_no_prompt_is_measured_twice_or_used_for_warm_up(tmp_path):
    plan = Plan(tmp_path, tmp_path, prompts=5)
    timed, warm = [i.id for i in plan.timed_items()], [i.id for i in plan.warm_up_items()]
    assert len(set(timed)) == len(timed) == 15
    assert not set(timed) & set(warm)
    assert min(int(i.removeprefix("gsm8k/")) for i in [*timed, *warm] if i.startswith("gsm8k")) >= 1000


def test_arms_differ_in_decoding_only(tmp_path):
    ar, stock, plugin = (arm.args for arm in Plan(tmp_path, tmp_path, "toy").arms())
    assert stock[: len(ar)] == ar
    assert plugin[: len(stock)] == stock
    assert plugin[len(stock) :] == ["--speculative-plugin", "specpilot", "--specpilot-overlay", "toy"]
    assert "--speculative-plugin" not in stock


@pytest.mark.parametrize(("mismatches", "code"), [(0, 0), (50, 1)])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_command_prints_tables_or_json_and_exits_by_the_rule(mismatches, code, flags, tmp_path, monkeypatch):
    def fake_run(plan: Plan, watcher: runner.Watcher, logs: Path, exact: Plan | None) -> Outcome:
        watcher.stage("AR", "answering", 2)
        watcher.step(1)
        return outcome(forcing(mismatches))

    monkeypatch.setattr(runner, "run", fake_run)
    monkeypatch.setattr(preflight, "check", lambda plan: "toy")
    monkeypatch.setattr(demo, "_pair", lambda model, draft: ((tmp_path, tmp_path), ""))
    app = typer.Typer()
    demo.register(app)
    done = CliRunner().invoke(app, ["--out", str(tmp_path / "out"), *flags], standalone_mode=False)
    assert done.return_value == code, done.output
    assert (tmp_path / "out" / "report.html").is_file()
    if flags:
        assert json.loads(done.stdout)["accepted"] is (code == 0)
