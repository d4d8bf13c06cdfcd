"""Three of the cheats as overlays on real SGLang servers of the small pair: each is rejected, with its own reason.

Minutes long; on an otherwise idle machine of two cores:

    SPECPILOT_TEST_LONG=1 python -m pytest tests/judge/test_cheats_on_a_server.py -s
"""

from __future__ import annotations

import re
import shutil
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from specpilot_sglang.eval.ab.failures import CandidateFailedError
from specpilot_sglang.eval.ab.run import Experiment, run_blocks
from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.load.run import Workload, draw
from specpilot_sglang.eval.presets import ar_args, dflash_args
from specpilot_sglang.eval.suites import load
from specpilot_sglang.loop.judge.answers import AnswerCheck
from specpilot_sglang.loop.judge.evidence import load_evidence
from specpilot_sglang.loop.judge.freeze import freeze
from specpilot_sglang.loop.judge.judging import judge
from specpilot_sglang.loop.judge.probes import probe
from specpilot_sglang.loop.judge.verdict import Status

OVERLAYS = Path(__file__).parent / "overlays"
WORKLOAD = Workload((), 24, 1)
REQUESTS, ANSWERS = 6, 8


class Reference:
    """The plain server: it says what is right for all cheats, and stands still while others are measured."""

    def __init__(self, server, folder, items):
        self.server, self.folder = server, folder
        AnswerCheck(folder, WORKLOAD.max_new_tokens).record_reference(items, self.up)
        server.pause()

    @contextmanager
    def up(self):
        self.server.resume()
        try:
            yield self.server
        finally:
            self.server.pause()


@pytest.fixture(scope="module")
def pool():
    return load("gsm8k")


@pytest.fixture(scope="module")
def reference(smollm2, pool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    items = [replace(item, id=f"answer/{item.id}") for item in pool[-ANSWERS:]]
    with Arm("ar", tuple(ar_args(smollm2))).server(log=folder / "ar.log") as server:
        yield Reference(server, folder, items)
        server.resume()


@pytest.fixture
def court(smollm2, drafter, reference, pool, tmp_path):
    args = (*dflash_args(smollm2, drafter), "--enable-metrics")

    def tried(name, *, answers):
        """One block of real loads, probes and, with `answers`, token forcing; then the judge."""
        folder = tmp_path / name
        incumbent, candidate = Arm("stock", args), Arm("candidate", args, overlay=str(OVERLAYS / name))
        freeze(incumbent, candidate, folder)
        shutil.copyfile(reference.folder / "reference.jsonl", folder / "reference.jsonl")
        check = AnswerCheck(folder, WORKLOAD.max_new_tokens)

        def prompts(index):
            return replace(WORKLOAD, items=draw(pool[:-ANSWERS], REQUESTS, seed=1, block=index, blocks=4))

        def after(server, arm, index, place):
            return {"probes": probe(server.client), **(check.after(server, arm, index, place) if answers else {})}

        experiment = Experiment(
            incumbent, candidate, prompts, folder / "selection", after=after, together=True, watch=telling
        )
        try:
            (block,) = run_blocks(experiment, 1)
            if answers:
                check.score(["stock", "candidate"], block, prompts(0).items, reference.up)
        except CandidateFailedError:
            pass  # a refused run is a verdict as well
        return judge(load_evidence(folder))

    return tried


def telling(event, **facts):
    print(f"{time.strftime('%H:%M:%S')} {event}: {facts.get('arm', '')} {facts.get('reasons', '')}", flush=True)


@pytest.mark.long
@pytest.mark.server
@pytest.mark.parametrize(
    ("name", "answers", "statuses", "reason"),
    [
        ("keeps_prefixes", False, {Status.CACHED}, "came from a cache"),
        ("accepts_unseen", True, {Status.WRONG_ANSWERS}, r"token forcing: \d+ wrong tokens|tokens clearly wrong"),
        ("answers_short", True, {Status.WRONG_ANSWERS, Status.SHORTER_ANSWERS}, "none of the candidate's|end early"),
    ],
)
def test_cheating_overlay_is_rejected_on_a_real_server(court, name, answers, statuses, reason):
    verdict = court(name, answers=answers)
    print(f"{name}: {verdict.status.value}: {verdict.reasons[0]}")
    assert verdict.status in statuses, verdict.reasons
    assert verdict.cheating
    assert re.search(reason, "\n".join(verdict.reasons))
