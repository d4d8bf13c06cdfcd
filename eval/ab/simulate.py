"""False accepts and power of the real decision code, by simulation: `python -m specpilot_sglang.eval.ab.simulate`.

Each simulated candidate gets its own simulated A/A, whose noise enters the rule as in production; blocks are fed
to `rule.decide`, and those of an accepted candidate are followed by a confirmation on fresh blocks, which promotion
demands. All **simulated**: no server runs.

One null is beyond any rule on 12 blocks: a candidate that is 2% faster and loses 20% in one launch of ten shows no
stall in 28% of all trials, and is then no different from a true gain of 2% (see `stalls`). `accepted` cannot be below
that while true gains are found; `confirmed`, with more blocks, is.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.random import Generator

from specpilot_sglang.eval.ab.noise import Noise
from specpilot_sglang.eval.ab.rule import Action, Rule, decide

#: (generator, number of blocks) -> log ratios of that many blocks.
Blocks = Callable[[Generator, int], "np.ndarray"]


@dataclass(frozen=True)
class Scenario:
    """One kind of candidate on one kind of host.

    Attributes:
        name: what it is.
        stock: draws A/A blocks of the host.
        candidate: draws A/B blocks.
        null: whether the candidate's true mean gain is at most what the rule asks for.
        rule: the rule, None for the default one.
    """

    name: str
    stock: Blocks
    candidate: Blocks
    null: bool = True
    rule: Rule | None = None


@dataclass(frozen=True)
class Rates:
    """What became of a scenario's candidates.

    Attributes:
        scenario: its name.
        null: whether its candidates must not be accepted.
        aa_blocks: blocks of each candidate's own A/A.
        candidates: how many there were.
        accepted: share that one trial accepted.
        accepted_error: Monte Carlo standard error of that share.
        confirmed: share that fresh blocks accepted again, as promotion demands.
        confirmed_error: Monte Carlo standard error of that share.
        mean_blocks: blocks a trial.
        mean_confirming: blocks a confirmation, of those that came so far.
    """

    scenario: str
    null: bool
    aa_blocks: int
    candidates: int
    accepted: float
    accepted_error: float
    confirmed: float
    confirmed_error: float
    mean_blocks: float
    mean_confirming: float


def normal(launch_sd: float, gain: float = 0.0) -> Blocks:
    """Return blocks whose arms' log speeds each have standard deviation `launch_sd` a launch."""

    def draw(rng: Generator, count: int) -> np.ndarray:
        return gain + rng.normal(0, launch_sd, count) - rng.normal(0, launch_sd, count)

    return draw


def stalls(launch_sd: float, chance: float, size: float, *, both: bool) -> Blocks:
    """Return blocks in which a launch loses an exponential share of mean `size` with probability `chance`.

    With `both` the host stalls whichever arm runs. Otherwise only the candidate stalls, and is as much faster
    in between as makes its mean gain zero: the left-skewed null that a t bound handles worst.
    """

    def lost(rng: Generator, count: int) -> np.ndarray:
        return rng.binomial(1, chance, count) * rng.exponential(size, count)

    def draw(rng: Generator, count: int) -> np.ndarray:
        plain = normal(launch_sd)(rng, count)
        return plain - lost(rng, count) + (lost(rng, count) if both else chance * size)

    return draw


def drifting(launch_sd: float, step_sd: float) -> Blocks:
    """Return blocks of a host whose speed also walks by `step_sd` from launch to launch; pairs run in ABBA order."""

    def draw(rng: Generator, count: int) -> np.ndarray:
        walk = np.cumsum(rng.normal(0, step_sd, 2 * count)).reshape(count, 2)
        order = np.where(np.arange(count) % 2, -1.0, 1.0)
        return normal(launch_sd)(rng, count) + order * (walk[:, 1] - walk[:, 0])

    return draw


def scenarios() -> Iterator[Scenario]:
    """Yield the null candidates of the acceptance bars, harder ones, and true gains."""
    for sd in (0.003, 0.01, 0.025):
        yield Scenario(f"null, launch noise {sd:.1%}", normal(sd), normal(sd))
    for sd, chance, size in (
        *((0.003, 0.05, 0.2), (0.01, 0.1, 0.1), (0.025, 0.1, 0.2), (0.003, 0.1, 0.2)),
        (0.003, 0.1, 0.3),  # more than `Rule.stall`: not excluded, so that it is seen what that costs
    ):
        label = f"launch noise {sd:.1%}, stalls of {size:.0%} in {chance:.0%} of launches"
        either = stalls(sd, chance, size, both=True)
        yield Scenario(f"null, {label}, either arm", either, either)
        yield Scenario(f"null, {label}, candidate only", normal(sd), stalls(sd, chance, size, both=False))
    walk = drifting(0.003, 0.005)
    yield Scenario("null, launch noise 0.3%, host drifts 0.5% a launch", walk, walk)
    biased = normal(0.003, 0.01)
    yield Scenario("null, launch noise 0.3%, second arm always 1% faster", biased, biased)
    edge = Rule(noise_factor=0)
    yield Scenario(
        "gain at the threshold itself, launch noise 1%", normal(0.01), normal(0.01, edge.threshold(0)), rule=edge
    )
    gain = math.log(1.03)
    for label, sd in (("block noise 1%", 0.01 / math.sqrt(2)), ("launch noise 0.3%", 0.003), ("launch noise 1%", 0.01)):
        yield Scenario(f"true gain 3%, {label}", normal(sd), normal(sd, gain), null=False)


def trial(draw: Blocks, noise: Noise, rule: Rule, rng: Generator) -> tuple[bool, list[float]]:
    """Run one candidate through the rule; return whether it was accepted, and the blocks that decided.

    One call with all blocks decides as calls after each block would: `decide` stops at the first that does.
    """
    values = [float(value) for value in draw(rng, rule.max_blocks)]
    decision = decide(values, noise.value, rule, noise.spread)
    if decision.action is Action.CONTINUE:
        raise AssertionError("the rule did not decide at its last look")
    return decision.action is Action.ACCEPT, values[: decision.blocks]


def rates(scenario: Scenario, candidates: int, aa_blocks: int, rule: Rule | None = None, seed: int = 0) -> Rates:
    """Return what becomes of `candidates` independent candidates, each with an A/A of its own.

    `confirmed` counts those that are accepted again on fresh blocks, as promotion demands.
    """
    rule, rng = rule or scenario.rule or Rule(), np.random.default_rng(seed)
    accepted = confirmed = blocks = confirming = 0
    for _ in range(candidates):
        noise = Noise(tuple(float(value) for value in scenario.stock(rng, aa_blocks)))
        yes, used = trial(scenario.candidate, noise, rule, rng)
        accepted, blocks = accepted + yes, blocks + len(used)
        if yes:
            again, more = trial(scenario.candidate, noise, rule.confirming(used), rng)
            confirmed, confirming = confirmed + again, confirming + len(more)
    share, promoted = accepted / candidates, confirmed / candidates
    return Rates(
        scenario.name,
        scenario.null,
        aa_blocks,
        candidates,
        share,
        _error(share, candidates),
        promoted,
        _error(promoted, candidates),
        blocks / candidates,
        confirming / accepted if accepted else 0.0,
    )


def _error(share: float, count: int) -> float:
    return math.sqrt(max(share * (1 - share), 1 / count) / count)


def main(argv: list[str] | None = None) -> int:
    """Print a Markdown table (or JSON) of all scenarios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--candidates", type=int, default=2000)
    parser.add_argument("--aa-blocks", type=int, nargs="+", default=[8, 20, 40])
    parser.add_argument("--only", default="", help="scenarios whose name holds this text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(argv)
    chosen_ones = [scenario for scenario in scenarios() if chosen.only in scenario.name]
    found = (rates(s, chosen.candidates, n, seed=chosen.seed) for s in chosen_ones for n in chosen.aa_blocks)
    out = sys.stdout
    if chosen.json:
        out.write(json.dumps([asdict(row) for row in found], indent=1) + "\n")
        return 0
    names = ("simulated candidates", "A/A blocks", "accepted", "confirmed on fresh blocks", "blocks", "to confirm")
    out.write(f"| {' | '.join(names)} |\n|{' --- |' * len(names)}\n")
    for row in found:
        share = f"{row.accepted:.2%} ± {row.accepted_error:.2%}"
        again = f"{row.confirmed:.2%} ± {row.confirmed_error:.2%}"
        blocks = f"{row.mean_blocks:.1f} | {row.mean_confirming:.1f}"
        out.write(f"| {row.scenario} | {row.aa_blocks} | {share} | {again} | {blocks} |\n")
        out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
