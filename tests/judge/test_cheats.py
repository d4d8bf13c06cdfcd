"""Twelve ways to look faster than one is, and some more: each candidate is rejected, with its own reason."""

from __future__ import annotations

import re
import shutil

import cheats
import pytest

from specpilot_sglang.eval.ab.failures import CandidateFailedError
from specpilot_sglang.loop.judge import freeze, pins
from specpilot_sglang.loop.judge.evidence import load_evidence
from specpilot_sglang.loop.judge.judging import judge
from specpilot_sglang.loop.judge.verdict import Status


@pytest.mark.parametrize(
    ("cheat", "status", "reason"),
    [
        (cheats.CachedAnswers, Status.CACHED, "repeated prompts? took .* the answer was kept"),
        (cheats.KeptPrefixes, Status.CACHED, r"prompt tokens came from a cache that was emptied"),
        (cheats.InventedTokens, Status.CACHED, r"tokens decoded in \d+ verify steps of at most 4"),
        (cheats.EarlyStop, Status.WRONG_ANSWERS, "lengths: .* they end early"),
        (cheats.ShorterOutputs, Status.WRONG_ANSWERS, "lengths: .* answers of the incumbent reach 24 tokens, none"),
        (cheats.LossyWeights, Status.WRONG_ANSWERS, r"token forcing: \d+ wrong tokens beyond a near tie"),
        (cheats.NearTies, Status.WRONG_ANSWERS, "token forcing: too many mismatches: excess"),
        (cheats.WrongWhileTimed, Status.WRONG_ANSWERS, r"timed answers: \d+ of \d+ tokens clearly wrong"),
        (cheats.WorkBeforeTheClock, Status.CLOCK, "work was moved out of it"),
        (cheats.NeverRan, Status.NOT_RUN, "speculative_steps did not grow: it never ran"),
        (cheats.MadeUpCounter, Status.NOT_RUN, "the server's own verify steps explain"),
        (cheats.Stock, Status.NOT_RUN, "no attestation: the server may be stock"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_cheat_is_rejected_with_its_reason(court, cheat, status, reason):
    verdict = court.one_block(cheat)
    assert verdict.status is status, verdict.reasons
    assert verdict.cheating
    assert re.search(reason, "\n".join(verdict.reasons))


@pytest.mark.parametrize("candidate", [cheats.Honest, cheats.Null])
def test_honest_candidate_passes_every_gate_that_one_block_can_decide(court, candidate):
    verdict = court.one_block(candidate)
    assert verdict.status is Status.INCOMPLETE, verdict.reasons
    assert {gate.gate for gate in verdict.gates if not gate.ok} == {"selection", "confirmation"}


def test_simulated_acceptance_is_refused_and_counts_against_the_candidate(court):
    with pytest.raises(CandidateFailedError, match="SGLANG_SIMULATE_ACC_LEN"):
        court.one_block(cheats.Honest, env={"SGLANG_SIMULATE_ACC_LEN": "4"})
    assert court.verdict.status is Status.NOT_LOSSLESS
    assert "simulation in the environment: SGLANG_SIMULATE_ACC_LEN=4" in court.verdict.reasons[0]


def test_threshold_relaxed_while_requests_run_is_refused(court):
    with pytest.raises(CandidateFailedError, match="acceptance is relaxed"):
        court.one_block(cheats.RelaxedThreshold)
    assert court.verdict.status is Status.NOT_LOSSLESS


def test_clock_patched_in_the_benchmark_client_is_seen_by_ours(court):
    court.client.clock = 0.25
    verdict = None
    # A slow clock can also be a busy machine's, so the infrastructure is blamed first, whichever arm it is.
    with pytest.raises(Exception, match=r"the client claims [\d.]+ s for a run that took"):
        verdict = court.one_block(SlowAndHonest)
    assert verdict is None
    assert not court.verdict.accepted


class SlowAndHonest(cheats.Honest):
    step_s = 0.05  # so that the run is longer than what the check leaves to a busy machine


@pytest.mark.parametrize("name", ["eval/load/process.py", "loop/judge/gates_time.py"])
def test_changed_judge_or_client_code_is_tampering(court, tmp_path, monkeypatch, name):
    package = tmp_path / "package"
    monkeypatch.undo()
    for file in pins.take():
        source = pins._package() / file
        if source.exists():
            (package / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, package / file)
    monkeypatch.setattr(pins, "_package", lambda: package)
    freeze.freeze(court.incumbent, court.candidate, court.folder)
    assert judge(load_evidence(court.folder)).status is not Status.TAMPERED
    with (package / name).open("a") as handle:
        handle.write("\nSLACK = 100\n")
    verdict = judge(load_evidence(court.folder))
    assert verdict.status is Status.TAMPERED
    assert verdict.reasons[0] == f"pins: {name} was changed since the candidate was frozen"


def test_benchmark_client_that_is_not_the_wheels_is_tampering(court, monkeypatch):
    freeze.freeze(court.incumbent, court.candidate, court.folder)
    hashes, _ = pins.client_source.client_problems()
    wrong = "sglang/benchmark/serving.py is not the file that the wheel installed: the benchmark client was changed"
    monkeypatch.setattr(pins.client_source, "client_problems", lambda: (hashes, [wrong]))
    verdict = judge(load_evidence(court.folder))
    assert verdict.status is Status.TAMPERED
    assert wrong in verdict.reasons[0]


def test_clock_replaced_in_the_judges_process_is_tampering(court, monkeypatch):
    freeze.freeze(court.incumbent, court.candidate, court.folder)
    real = pins.time.monotonic
    monkeypatch.setattr(pins.time, "monotonic", lambda: real() / 2)
    assert "time.monotonic of this process was replaced" in judge(load_evidence(court.folder)).reasons[0]


def test_overlay_changed_after_it_was_frozen_is_tampering(court):
    freeze.freeze(court.incumbent, court.candidate, court.folder)
    with open(f"{court.candidate.overlay}/overlay.yaml", "a") as handle:
        handle.write("description: faster now\n")
    verdict = judge(load_evidence(court.folder))
    assert verdict.status is Status.TAMPERED
    assert "the overlay was changed after it was frozen" in verdict.reasons[0]
