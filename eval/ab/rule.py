"""The accept rule: one-sided Student-t bounds of paired log ratios at fixed looks, with alpha spending.

A candidate is accepted at a look when its lower bound is above `log(1 + min_gain) + noise_factor * noise`. The error
probabilities of the looks add up to at most 5% (Bonferroni), so that a candidate whose true gain is the threshold
itself, let alone zero, is accepted in at most 5% of all trials, whatever the dependence between looks. Two looks
spend 1.5% and 3.5%: of the spendings tried, this one finds a 3% gain most often within 12 blocks
(`python -m specpilot_sglang.eval.ab.simulate`). Hopeless candidates are given up between looks; that can only lower
the false-accept rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.bounds import lower_t, mean_and_error, upper_t

#: The whole procedure's false-accept rate.
ALPHA = 0.05
MIN_LOOK = 8
_CONFIRM_LOOK, _CONFIRM_ALPHA = 4, 0.005


class Action(StrEnum):
    """What follows from the blocks so far."""

    ACCEPT = "accept"
    REJECT = "reject"
    CONTINUE = "continue"


@dataclass(frozen=True)
class Rule:
    """When a candidate is accepted.

    Attributes:
        min_gain: smallest gain of interest, as a share: 0.01 is 1%.
        noise_factor: how often the host's A/A noise is added to it.
        looks: numbers of blocks at which a candidate may be accepted; the last one ends the trial.
        alphas: error probability spent at each look.
        futility_from: from this many blocks on a hopeless candidate is rejected early; 0 never.
        futility_alpha: one-sided error probability of that upper bound.
        fewest: blocks before which there is no look.
    """

    min_gain: float = 0.01
    noise_factor: float = 2.0
    looks: tuple[int, ...] = (8, 12)
    alphas: tuple[float, ...] = (0.015, 0.035)
    futility_from: int = 3
    futility_alpha: float = 0.005
    fewest: int = MIN_LOOK

    def __post_init__(self) -> None:
        looks, alphas = self.looks, self.alphas
        if not looks or len(looks) != len(alphas) or list(looks) != sorted(set(looks)):
            raise SpecPilotError("looks must rise and have one alpha each", where="rule.looks", fix="give both")
        if looks[0] < self.fewest:
            raise SpecPilotError(f"a look before {self.fewest} blocks", where="rule.looks", fix="look later")
        if min(alphas) <= 0 or sum(alphas) > ALPHA + 1e-12:
            raise SpecPilotError(f"the alphas must sum to at most {ALPHA}", where="rule.alphas", fix="spend less")
        if self.min_gain < 0 or self.noise_factor < 0:
            raise SpecPilotError("min_gain and noise_factor must not be negative", where="rule", fix="correct them")

    def confirming(self) -> Rule:
        """Return the rule for a gain that was selected by this one: a further, strict look at half the blocks.

        Large gains need no eight blocks a second time; small ones get the same number as before.
        """
        early, share = min(_CONFIRM_LOOK, self.looks[0] - 1), 1 - _CONFIRM_ALPHA / ALPHA
        alphas = (_CONFIRM_ALPHA, *(alpha * share for alpha in self.alphas))
        return replace(self, looks=(early, *self.looks), alphas=alphas, fewest=early)

    @property
    def max_blocks(self) -> int:
        """Blocks after which there is a decision in any case."""
        return self.looks[-1]

    def threshold(self, noise: float) -> float:
        """Return the log ratio that the lower bound must pass on a host with this A/A noise (log ratio)."""
        return math.log1p(self.min_gain) + self.noise_factor * noise


@dataclass(frozen=True)
class Decision:
    """What the rule says; log ratios, candidate over incumbent.

    Attributes:
        action: accept, reject or continue.
        blocks: blocks that were looked at; later ones play no part.
        mean: their mean log ratio, NaN without blocks.
        lower: one-sided lower bound at the look's confidence.
        alpha: error probability of that bound.
        threshold: what `lower` had to pass.
        noise: A/A noise of the host.
        reason: one sentence.
    """

    action: Action
    blocks: int
    mean: float
    lower: float
    alpha: float
    threshold: float
    noise: float
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the decision as JSON values; bounds that do not exist yet are None."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


def decide(log_ratios: Sequence[float], noise: float, rule: Rule | None = None) -> Decision:
    """Return the decision after these blocks. A pure function: a resumed trial decides as an undisturbed one.

    Args:
        log_ratios: log(candidate speed / incumbent speed), one a block, in the order the blocks were run.
        noise: `Noise.value` of the host.
        rule: the rule; the default one if None.

    Raises:
        SpecPilotError: a log ratio or the noise is not finite.
    """
    rule = rule or Rule()
    if not all(math.isfinite(value) for value in [*log_ratios, noise]):
        raise SpecPilotError("a block has no finite speed ratio", fix="measure that block again")
    threshold = rule.threshold(noise)
    for count in range(1, min(len(log_ratios), rule.max_blocks) + 1):
        decision = _at(log_ratios[:count], threshold, noise, rule)
        if decision.action is not Action.CONTINUE:
            return decision
    used = list(log_ratios[: rule.max_blocks])
    upcoming = next((look for look in rule.looks if look > len(used)), rule.max_blocks)
    why = f"{len(used)} of the {upcoming} blocks before the next look"
    return _decision(Action.CONTINUE, used, rule.alphas[rule.looks.index(upcoming)], threshold, noise, why)


def _at(values: Sequence[float], threshold: float, noise: float, rule: Rule) -> Decision:
    """Return the decision at exactly this number of blocks, without regard to earlier looks."""
    count, values = len(values), list(values)
    alpha = dict(zip(rule.looks, rule.alphas, strict=True)).get(count)
    if alpha is not None and lower_t(values, alpha) > threshold:
        why = f"the lower bound after {count} blocks is above {percent(threshold)}"
        return _decision(Action.ACCEPT, values, alpha, threshold, noise, why)
    if count == rule.max_blocks:
        why = f"the lower bound after the last look, at {count} blocks, is not above {percent(threshold)}"
        return _decision(Action.REJECT, values, rule.alphas[-1], threshold, noise, why)
    hopeless = rule.futility_from and count >= max(2, rule.futility_from)
    if hopeless and upper_t(values, rule.futility_alpha) < threshold:
        why = f"the upper bound after {count} blocks is below {percent(threshold)}: no use in going on"
        return _decision(Action.REJECT, values, alpha or rule.alphas[-1], threshold, noise, why)
    return _decision(Action.CONTINUE, values, alpha or rule.alphas[-1], threshold, noise, "")


def _decision(
    action: Action, values: Sequence[float], alpha: float, threshold: float, noise: float, why: str
) -> Decision:
    mean = mean_and_error(values)[0]
    return Decision(action, len(values), mean, lower_t(values, alpha), alpha, threshold, noise, why)


def percent(log_ratio: float) -> str:
    """Return a log ratio as a gain for people: `+2.96%`."""
    return f"{math.expm1(log_ratio):+.2%}" if math.isfinite(log_ratio) else "-"
