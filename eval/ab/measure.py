"""From blocks to numbers: log ratios of an A/B, noise of an A/A, and the trial that stops at its decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specpilot_sglang.eval.ab.block import LATENCIES, Block
from specpilot_sglang.eval.ab.latency import LatencyCheck, check_latencies
from specpilot_sglang.eval.ab.noise import Noise
from specpilot_sglang.eval.ab.rule import Action, Decision, Rule, decide
from specpilot_sglang.eval.ab.run import Experiment, iterate


@dataclass(frozen=True)
class Trial:
    """A finished A/B: its blocks, the decision on speed and the latency checks."""

    blocks: tuple[Block, ...]
    decision: Decision
    latencies: tuple[LatencyCheck, ...]

    @property
    def accepted(self) -> bool:
        """Whether speed and latencies both pass; lossless answers are the judge's part."""
        return self.decision.action is Action.ACCEPT and all(check.ok for check in self.latencies)

    def to_json(self) -> dict[str, Any]:
        """Return decision and checks as JSON values."""
        checks = [check.to_json() for check in self.latencies]
        return {"accepted": self.accepted, "decision": self.decision.to_json(), "latencies": checks}


def log_ratios(blocks: Sequence[Block], incumbent: str, candidate: str) -> list[float]:
    """Return log(candidate / incumbent) of output tokens a second, one value a block."""
    return [block.log_ratio(incumbent, candidate) for block in blocks]


def latency_log_ratios(blocks: Sequence[Block], incumbent: str, candidate: str) -> dict[str, list[float]]:
    """Return log(candidate / incumbent) of each gated latency, one value a block; positive is slower."""
    return {m: [block.latency_log_ratio(m, incumbent, candidate) for block in blocks] for m in LATENCIES}


def noise_of(blocks: Sequence[Block], first: str, second: str, *, host: str, regime: str) -> Noise:
    """Return what an A/A's blocks say about the host."""
    latencies = {m: tuple(v) for m, v in latency_log_ratios(blocks, first, second).items()}
    return Noise(tuple(log_ratios(blocks, first, second)), latencies, host, regime)


def judge_speed(blocks: Sequence[Block], incumbent: str, candidate: str, noise: Noise, rule: Rule) -> Trial:
    """Return the decision on these blocks, and the latency checks on those it looked at."""
    decision = decide(log_ratios(blocks, incumbent, candidate), noise.value, rule, noise.spread)
    used = blocks[: decision.blocks]
    checks = check_latencies(latency_log_ratios(used, incumbent, candidate), noise)
    return Trial(tuple(used), decision, tuple(checks))


def run_trial(experiment: Experiment, noise: Noise, rule: Rule) -> Trial:
    """Run blocks until the rule decides; see `run.iterate` for what it raises."""
    names = experiment.incumbent.name, experiment.candidate.name
    blocks: list[Block] = []
    stream = iterate(experiment)
    try:
        while decide(log_ratios(blocks, *names), noise.value, rule, noise.spread).action is Action.CONTINUE:
            blocks.append(next(stream))
    finally:
        stream.close()  # type: ignore[attr-defined]
    return judge_speed(blocks, *names, noise, rule)
