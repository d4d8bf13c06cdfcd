"""Whole trials: an honest gain is promoted, a null is not, and a gain on known prompts only is not confirmed."""

from __future__ import annotations

import json
from dataclasses import replace

import cheats
import pytest
from toy_prompts import POOL, WORKLOAD
from toy_server import tokenizer_of

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.prompts import encode
from specpilot_sglang.loop.judge import promotion, sealed
from specpilot_sglang.loop.judge.evidence import load_evidence
from specpilot_sglang.loop.judge.freeze import freeze
from specpilot_sglang.loop.judge.judging import judge
from specpilot_sglang.loop.judge.promotion import try_candidate
from specpilot_sglang.loop.judge.verdict import GateResult, Status, Verdict


class Killed(BaseException):
    """What SIGKILL looks like to the code under test."""


@pytest.mark.long
def test_honest_gain_is_promoted_and_its_evidence_binds(court):
    verdict = try_candidate(court.trial(cheats.Honest))
    assert verdict.accepted, verdict.reasons
    written = json.loads((court.folder / "verdict.json").read_text())
    assert written == verdict.to_json()
    evidence = load_evidence(court.folder)
    assert {i.removeprefix("sealed/") for b in evidence.confirmation for i in b.items}.isdisjoint(
        i for b in evidence.selection for i in b.items
    )
    assert judge(evidence).accepted

    # The selecting blocks in the place of fresh ones, and prompts drawn for another candidate.
    reused = judge(replace(evidence, confirmation=evidence.selection))
    assert reused.status is Status.STALE_PROMPTS
    other = replace(evidence.sealed, frozen_sha256="0" * 64)
    assert judge(replace(evidence, sealed=other)).status is Status.STALE_PROMPTS
    early = replace(evidence.sealed, drawn_at=evidence.frozen.frozen_at - 1)
    assert "after it was frozen" in judge(replace(evidence, sealed=early)).reasons[0]

    # One byte of a result, changed after the block was written.
    block = evidence.selection[0]
    file = block.root / block.runs["stock"].load_file
    file.write_text(file.read_text().replace('"duration_s": 0', '"duration_s": 1', 1))
    assert judge(load_evidence(court.folder)).status is Status.TAMPERED


@pytest.mark.long
def test_null_candidate_is_not_promoted_and_not_called_a_cheat(court):
    verdict = try_candidate(court.trial(cheats.Null))
    assert verdict.status is Status.NO_GAIN, verdict.reasons
    assert not verdict.cheating
    assert not (court.folder / "sealed.json").exists()  # sealed prompts are not spent on it


@pytest.mark.long
def test_gain_on_prompts_it_knows_is_not_confirmed_on_sealed_ones(court, smollm2):
    known = encode(POOL, tokenizer_of(smollm2))
    cheats.KnowsTheBenchmark.public = {tuple(p.ids) for p in known}
    verdict = try_candidate(court.trial(cheats.KnowsTheBenchmark))
    assert verdict.status is Status.NOT_CONFIRMED, verdict.reasons
    assert next(gate for gate in verdict.gates if gate.gate == "selection").ok


@pytest.mark.long
@pytest.mark.parametrize("step", ["draw", "score"])
def test_killed_trial_goes_on_to_the_same_verdict(court, monkeypatch, step):
    owner = sealed if step == "draw" else promotion.AnswerCheck

    def die(*args, **kwargs):
        raise Killed

    trial = replace(court.trial(cheats.Honest), watch=lambda event, **facts: None)
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, die)
        with pytest.raises(Killed):
            try_candidate(trial)
    assert len(list(court.folder.glob("selection/blocks/*.json"))) == 8
    if step == "score":  # the last step: all else is there already, and is not run again
        before = {file: file.stat().st_mtime_ns for file in court.folder.glob("*/blocks/*.json")}
        assert try_candidate(trial).accepted
        assert {file: file.stat().st_mtime_ns for file in court.folder.glob("*/blocks/*.json")} == before


def test_sealed_prompts_are_new_texts_and_fixed_once_drawn(tmp_path, court):
    frozen = freeze(court.incumbent, court.candidate, tmp_path)
    used = [item.id for item in POOL[:20]]
    settings = {"frozen_sha256": frozen.sha256, "per_block": 5, "blocks": 3, "answers": 4, "folder": tmp_path}
    first = sealed.draw(POOL, used, **settings)
    assert sealed.draw(POOL, used, **settings) == first
    texts = {item.text for item in POOL}
    assert not any(item.text in texts for item in first.items)
    assert len({item.id for item in (*first.items, *first.answers)}) == 19
    assert not {item.id.removeprefix("sealed/") for item in first.items} & set(used)
    with pytest.raises(SpecPilotError, match="another candidate"):
        sealed.draw(POOL, used, **{**settings, "frozen_sha256": "f" * 64})
    with pytest.raises(SpecPilotError, match="no sealed prompts for block 3"):
        first.block(3)
    with pytest.raises(SpecPilotError, match="items are unused"):
        sealed.draw(POOL[:10], [], **{**settings, "folder": tmp_path / "other"})
    assert WORKLOAD.items == ()


def test_verdict_is_the_gravest_status_and_keeps_every_reason():
    gates = [
        GateResult("speed", False, Status.NO_GAIN, ("slow",)),
        GateResult("pins", False, Status.TAMPERED, ("changed",)),
        GateResult("errors", True, Status.ACCEPTED, ()),
    ]
    verdict = Verdict.of(gates)
    assert (verdict.status, verdict.cheating) == (Status.TAMPERED, True)
    assert verdict.reasons == ("pins: changed", "speed: slow")
    assert Verdict.of(gates[2:]).accepted
    assert not Verdict.of(gates[:1]).cheating
