"""Trials of the judge on toy servers: real journals, real load code, real gates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench import LightClient
from toy_prompts import POOL, WORKLOAD
from toy_server import ToyServer, tokenizer_of

from specpilot_sglang.eval.ab.noise import Noise
from specpilot_sglang.eval.ab.rule import Rule
from specpilot_sglang.eval.ab.run import Experiment, run_blocks
from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.load import run as load_run
from specpilot_sglang.eval.load.run import draw
from specpilot_sglang.loop.judge import answers, pins
from specpilot_sglang.loop.judge.answers import AnswerCheck
from specpilot_sglang.loop.judge.evidence import load_evidence
from specpilot_sglang.loop.judge.freeze import freeze
from specpilot_sglang.loop.judge.judging import judge
from specpilot_sglang.loop.judge.probes import probe
from specpilot_sglang.loop.judge.promotion import Trial
from specpilot_sglang.loop.judge.verdict import Verdict

#: Wide enough that a busy machine's latencies pass; the gain of the honest candidate is 40%.
NOISE = Noise((0.01, -0.01) * 4, {m: (0.6, -0.6) * 4 for m in ("ttft_p99_s", "itl_p99_s")}, "toy", "toy")


@pytest.fixture
def overlay(tmp_path) -> str:
    folder = tmp_path / "candidate"
    folder.mkdir()
    (folder / "overlay.yaml").write_text("name: candidate\n")
    return str(folder)


class Court:
    """Tries candidates: `cls` serves the candidate's arm, honest servers the others."""

    def __init__(self, folder: Path, tokenizer: Path, overlay: str, monkeypatch) -> None:
        self.folder, self.tokenizer, self.client = folder, tokenizer, LightClient()
        self.incumbent = Arm("stock", ("--dtype", "bfloat16"))
        self.candidate = Arm("candidate", ("--dtype", "bfloat16"), overlay=overlay)
        self.reference = Arm("ar", ())
        # A developer may edit the package while tests run; pins of all of it have tests of their own.
        monkeypatch.setattr(pins, "PINNED", ("errors.py",))
        monkeypatch.setattr(load_run, "run_client", self.client)
        # The light client is no file of SGLang's, and reading the wheel's list of those takes longer than a toy's load.
        monkeypatch.setattr(load_run, "client_problems", lambda: ({}, []))
        for module in (load_run, answers):
            monkeypatch.setattr(module, "load_tokenizer", tokenizer_of)

    def launcher(self, cls: type[ToyServer]):
        def launch(arm: Arm, log: Path):
            return (cls if arm.name == "candidate" else ToyServer)(arm, log, self.tokenizer)

        return launch

    def one_block(self, cls: type[ToyServer], **changes) -> Verdict:
        """One block through the real load code, token forcing, probes; then the judge."""
        candidate = replace(self.candidate, **changes)
        freeze(self.incumbent, candidate, self.folder)
        launch = self.launcher(cls)
        check = AnswerCheck(self.folder, WORKLOAD.max_new_tokens, 8)

        def after(server, arm, index, folder):
            return {"probes": probe(server.client), **check.after(server, arm, index, folder)}

        def plain():
            return launch(self.reference, self.folder / "ar.log")

        def prompts(index):
            return replace(WORKLOAD, items=draw(POOL, 12, seed=1, block=index, blocks=4))

        check.record_reference([replace(i, id=f"answer/{i.id}") for i in POOL[100:144]], plain)
        experiment = Experiment(
            self.incumbent, candidate, prompts, self.folder / "selection", after=after, launch=launch
        )
        try:
            (block,) = run_blocks(experiment, 1)
            check.score(["stock", "candidate"], block, prompts(0).items, plain)
        finally:
            self.verdict = judge(load_evidence(self.folder))
        return self.verdict

    def trial(self, cls: type[ToyServer], **changes) -> Trial:
        """A whole trial of dozens of loads."""
        settings = {"rule": Rule(futility_from=6), "seed": 3, **changes}
        return Trial(
            self.incumbent,
            self.candidate,
            self.reference,
            POOL,
            replace(WORKLOAD, concurrency=4),
            per_block=4,
            answers=44,
            noise=NOISE,
            folder=self.folder,
            launch=self.launcher(cls),
            **settings,
        )


@pytest.fixture
def court(tmp_path, smollm2, overlay, monkeypatch):
    return Court(tmp_path / "trial", smollm2, overlay, monkeypatch)
