"""One whole trial: freeze, select on public prompts, draw sealed ones, confirm, force tokens, judge.

Every step leaves its result on disk before the next begins, so that a killed trial goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from specpilot_sglang.eval.ab.durable import write_json
from specpilot_sglang.eval.ab.failures import CandidateFailedError
from specpilot_sglang.eval.ab.hostlock import host_lock
from specpilot_sglang.eval.ab.measure import run_trial
from specpilot_sglang.eval.ab.noise import Noise
from specpilot_sglang.eval.ab.rule import Rule
from specpilot_sglang.eval.ab.run import Experiment, Launch, Load, launch_here
from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.load.run import Workload, draw, run_load
from specpilot_sglang.eval.servers import Server
from specpilot_sglang.eval.suites import Item
from specpilot_sglang.loop.judge import sealed
from specpilot_sglang.loop.judge.answers import AnswerCheck
from specpilot_sglang.loop.judge.evidence import load_evidence
from specpilot_sglang.loop.judge.freeze import Frozen, freeze
from specpilot_sglang.loop.judge.judging import judge
from specpilot_sglang.loop.judge.probes import probe
from specpilot_sglang.loop.judge.verdict import Status, Verdict


def _quiet(event: str, **facts: Any) -> None:
    """Hear nothing."""


@dataclass(frozen=True)
class Trial:
    """What is needed to try one candidate.

    Attributes:
        incumbent: the arm to beat.
        candidate: the arm under test.
        reference: plain decoding of the same target; its tokens are the truth.
        pool: prompts of the public suites; sealed ones are made from those that the selection does not use.
        workload: settings of each block; its own prompts are not used.
        per_block: prompts a block.
        answers: sealed prompts for token forcing; at least 600 positions are needed to tell 0.5 points.
        noise: the host's A/A.
        rule: the accept rule.
        folder: where the evidence goes.
        seed: of order and public prompts.
        lock: file that is locked for each block.
        watch: hears of events.
        launch: makes a server.
        load: sends a workload.
        together: both servers of a block are up at the same time; see `Experiment`.
    """

    incumbent: Arm
    candidate: Arm
    reference: Arm
    pool: Sequence[Item]
    workload: Workload
    per_block: int
    answers: int
    noise: Noise
    folder: Path
    rule: Rule = field(default_factory=Rule)
    seed: int = 0
    lock: Path | None = None
    watch: Callable[..., None] = _quiet
    launch: Launch = launch_here
    load: Load = run_load
    together: bool = False


def try_candidate(trial: Trial) -> Verdict:
    """Run the trial to its verdict, which is also written to `verdict.json`.

    Raises:
        SpecPilotError: infrastructure failed; call again to go on.
    """
    frozen = freeze(trial.incumbent, trial.candidate, trial.folder)
    write_json(trial.folder / "noise.json", trial.noise.to_json())
    write_json(trial.folder / "rule.json", vars(trial.rule))
    try:
        run_trial(_selection(trial), trial.noise, trial.rule)
        verdict = judge(load_evidence(trial.folder))
        if verdict.status is Status.INCOMPLETE:  # nothing speaks against it so far
            _confirm(trial, frozen)
            verdict = judge(load_evidence(trial.folder))
    except CandidateFailedError:
        verdict = judge(load_evidence(trial.folder))
    write_json(trial.folder / "verdict.json", verdict.to_json())
    return verdict


def _selection(trial: Trial) -> Experiment:
    blocks = trial.rule.max_blocks

    def prompts(index: int) -> Workload:
        items = draw(trial.pool, trial.per_block, seed=trial.seed, block=index, blocks=blocks)
        return replace(trial.workload, items=items)

    return _experiment(trial, "selection", prompts, partial(_probe, trial))


def _confirm(trial: Trial, frozen: Frozen) -> None:
    known = load_evidence(trial.folder)
    check = AnswerCheck(trial.folder, trial.workload.max_new_tokens, trial.workload.concurrency, known.dtype)
    used = [item for block in known.selection for item in block.items]
    fresh = sealed.draw(
        trial.pool,
        used,
        frozen_sha256=frozen.sha256,
        per_block=trial.per_block,
        blocks=trial.rule.confirming().max_blocks,
        fewest=trial.rule.confirming().looks[0],
        answers=trial.answers,
        folder=trial.folder,
    )

    def after(server: Server, arm: Arm, index: int, folder: Path) -> Mapping[str, Any]:
        return {**_probe(trial, server, arm, index, folder), **check.after(server, arm, index, folder)}

    def plain() -> Server:
        return trial.launch(trial.reference, trial.folder / "reference.log")

    with host_lock(trial.lock):
        check.record_reference(fresh.answers, plain)
    confirmation = _experiment(
        trial, "confirmation", lambda index: replace(trial.workload, items=fresh.block(index)), after
    )
    first = run_trial(confirmation, trial.noise, replace(known, sealed=fresh).confirming).blocks[0]
    with host_lock(trial.lock):
        check.score([trial.incumbent.name, trial.candidate.name], first, fresh.block(0), plain)


def _probe(trial: Trial, server: Server, arm: Arm, index: int, folder: Path) -> Mapping[str, Any]:
    if arm.name != trial.candidate.name:  # no verdict needs the incumbent's, and on a slow host it takes 15 s a block
        return {}
    return {"probes": probe(server.client)}


def _experiment(trial: Trial, name: str, prompts: Any, after: Any) -> Experiment:
    return Experiment(
        trial.incumbent,
        trial.candidate,
        prompts,
        trial.folder / name,
        seed=trial.seed + (name == "confirmation"),
        about={"part": name},
        after=after,
        lock=trial.lock,
        watch=trial.watch,
        launch=trial.launch,
        load=trial.load,
        together=trial.together,
    )
