"""The two experiments of the command line: an A/A that measures a host, and an A/B that decides on a candidate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval import suites
from specpilot_sglang.eval.ab.block import Block
from specpilot_sglang.eval.ab.config import Settings
from specpilot_sglang.eval.ab.host import host_class, regime, stored_noise
from specpilot_sglang.eval.ab.measure import Trial, noise_of, run_trial
from specpilot_sglang.eval.ab.noise import MIN_BLOCKS, Noise
from specpilot_sglang.eval.ab.run import After, Experiment, run_blocks
from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.load.run import Workload

#: What the second arm of an A/A is called.
AGAIN = "again"


@dataclass(frozen=True)
class Setup:
    """Where and how an experiment runs.

    Attributes:
        settings: what is compared.
        root: the journal's folder.
        lock: file that is locked for each block, None for no lock.
        watch: hears of arms, blocks and failures.
        after: takes further evidence on each server after its load.
        about: further JSON values that identify the experiment.
    """

    settings: Settings
    root: Path
    lock: Path | None = None
    watch: Callable[..., None] | None = None
    after: After | None = None
    about: tuple[tuple[str, Any], ...] = ()

    def experiment(self, incumbent: Arm, candidate: Arm, blocks: int) -> Experiment:
        """Return the experiment between two arms; `blocks` is how many may be asked for."""
        pool = self.settings.pool()
        asked = regime(self.workload(pool, 0, blocks), self.settings.together)
        about = {"host": host_class(), "regime": asked, **dict(self.about)}
        made = Experiment(
            incumbent,
            candidate,
            lambda index: self.workload(pool, index, max(blocks, index + 1)),
            self.root,
            seed=self.settings.seed,
            about=about,
            after=self.after,
            lock=self.lock,
            together=self.settings.together,
        )
        return replace(made, watch=self.watch) if self.watch else made

    def workload(self, pool: list[suites.Item], block: int, blocks: int) -> Workload:
        """Return the prompts of one block."""
        return self.settings.workload(pool, block, blocks)


def run_aa(setup: Setup, blocks: int) -> tuple[Noise, list[Block], Experiment]:
    """Measure the incumbent against itself; both arms are the same server under two names."""
    if blocks < MIN_BLOCKS:
        raise SpecPilotError(f"{blocks} blocks say too little", where="--blocks", fix=f"ask for {MIN_BLOCKS} or more")
    first = setup.settings.arm(setup.settings.incumbent)
    experiment = setup.experiment(first, replace(first, name=AGAIN), blocks)
    done = run_blocks(experiment, blocks)
    about = experiment.about
    return noise_of(done, first.name, AGAIN, host=about["host"], regime=about["regime"]), done, experiment


def run_ab(setup: Setup, noise: Noise | None = None) -> tuple[Trial, Noise, Experiment]:
    """Run the candidate against the incumbent until the rule decides.

    Args:
        setup: with a candidate in its settings.
        noise: the host's A/A; the stored one of this host class and regime if None.

    Raises:
        SpecPilotError: no noise is known; and what `run.iterate` raises.
    """
    settings = setup.settings
    if settings.candidate is None:
        raise SpecPilotError("there is no candidate", where="candidate", fix="add `candidate: {name: ..., ...}`")
    rule = settings.rule.rule()
    arms = settings.arm(settings.incumbent), settings.arm(settings.candidate)
    experiment = setup.experiment(*arms, rule.max_blocks)
    known = noise or stored_noise(experiment.about["host"], experiment.about["regime"])
    return run_trial(experiment, known, rule), known, experiment
