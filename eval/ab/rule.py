"""The accept rule: one-sided Student-t bounds of paired log ratios at fixed looks, with alpha spending.

A candidate is accepted at a look when its lower bound is above `log(1 + min_gain) + noise_factor * noise`. The error
probabilities of the looks add up to at most 5% (Bonferroni), so that a candidate whose true gain is the threshold
itself, let alone zero, is accepted in at most 5% of all trials, whatever the dependence between looks. Hopeless
candidates are given up between looks (`futility`); that can only lower the false-accept rate.

A look before the last one, and any look of a confirmation, also asks that rare stalls, unseen so far, could not make
up for the gain (`stalls`): small gains need more blocks, large ones none beyond the first look. So the first look can
have little of the 5%; the last one gets the rest (`python -m specpilot_sglang.eval.ab.simulate`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.bounds import lower_t, mean_and_error
from specpilot_sglang.eval.ab.futility import chance_of_acceptance
from specpilot_sglang.eval.ab.noise import Spread
from specpilot_sglang.eval.ab.stalls import excluded, hidden_loss

#: The whole procedure's false-accept rate.
ALPHA = 0.05
MIN_LOOK = 8
_CONFIRM_LOOK, _CONFIRM_ALPHA = 4, 0.005
#: Blocks that a confirmation may add: with 12 and 12 before, enough for gains from 1.9% on.
_EXTRA = 12


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
        futility_chance: a candidate is hopeless when it has less than this chance to pass the last look.
        fewest: blocks before which there is no look.
        stall: what a stalled launch is taken to lose, as a log ratio; see `stalls`.
        extra: blocks that a confirmation may add after the last look, only to exclude rare stalls.
        selecting: log ratios of the blocks that selected the candidate, in a confirmation. They have no part in the
            bound, which comes from fresh blocks alone; launches that may show a stall they are all the same.
    """

    min_gain: float = 0.01
    noise_factor: float = 2.0
    looks: tuple[int, ...] = (8, 12)
    alphas: tuple[float, ...] = (0.005, 0.045)
    futility_from: int = 2
    futility_chance: float = 0.02
    fewest: int = MIN_LOOK
    stall: float = 0.2
    extra: int = 0
    selecting: tuple[float, ...] = ()

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

    def confirming(self, selecting: Sequence[float] = (), most: int | None = None) -> Rule:
        """Return the rule for a gain that was selected by this one: a further, strict look at half the blocks.

        Large gains need no eight blocks a second time; small ones may need more than before, see `stalls`.

        Args:
            selecting: log ratios of the blocks that selected.
            most: blocks that there are prompts for, which leaves out later looks; as many as are asked for if None.
        """
        early, share = min(_CONFIRM_LOOK, self.looks[0] - 1), 1 - _CONFIRM_ALPHA / ALPHA
        spent = {early: _CONFIRM_ALPHA} | {n: a * share for n, a in zip(self.looks, self.alphas, strict=True)}
        most = self.looks[-1] + _EXTRA if most is None else most
        looks = tuple(look for look in spent if look <= max(most, early))
        alphas, extra = tuple(spent[look] for look in looks), max(0, min(_EXTRA, most - looks[-1]))
        return replace(self, looks=looks, alphas=alphas, fewest=early, extra=extra, selecting=tuple(selecting))

    @property
    def max_blocks(self) -> int:
        """Blocks after which there is a decision in any case."""
        return self.looks[-1] + self.extra

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


def decide(
    log_ratios: Sequence[float], noise: float, rule: Rule | None = None, known: Spread | None = None
) -> Decision:
    """Return the decision after these blocks. A pure function: a resumed trial decides as an undisturbed one.

    Args:
        log_ratios: log(candidate speed / incumbent speed), one a block, in the order the blocks were run.
        noise: `Noise.value` of the host.
        rule: the rule; the default one if None.
        known: `Noise.spread` of the host; tells earlier which candidates are hopeless.

    Raises:
        SpecPilotError: a log ratio or the noise is not finite.
    """
    rule = rule or Rule()
    if not all(math.isfinite(value) for value in [*log_ratios, noise]):
        raise SpecPilotError("a block has no finite speed ratio", fix="measure that block again")
    threshold = rule.threshold(noise)
    for count in range(1, min(len(log_ratios), rule.max_blocks) + 1):
        decision = _at(log_ratios[:count], threshold, noise, rule, known)
        if decision.action is not Action.CONTINUE:
            return decision
    used = list(log_ratios[: rule.max_blocks])
    upcoming = next((look for look in rule.looks if look > len(used)), rule.max_blocks)
    why = f"{len(used)} of the {upcoming} blocks before the next look"
    alpha = dict(zip(rule.looks, rule.alphas, strict=True)).get(upcoming, rule.alphas[-1])
    return _decision(Action.CONTINUE, used, alpha, threshold, noise, why)


def _at(values: Sequence[float], threshold: float, noise: float, rule: Rule, known: Spread | None) -> Decision:
    """Return the decision at exactly this number of blocks, without regard to earlier looks."""
    count, values, last, seen = len(values), list(values), rule.looks[-1], [*rule.selecting, *values]
    # After the last look there is none: those that come so far have passed it, and must stay above.
    alpha = rule.alphas[-1] if count >= last else dict(zip(rule.looks, rule.alphas, strict=True)).get(count)
    faster = alpha is not None and lower_t(values, alpha) > threshold
    # A single trial's last look accepts without: twelve blocks of a 3% gain cannot exclude stalls, confirmation can.
    if alpha and faster and (excluded(seen, rule.stall) or (count == last and not rule.selecting)):
        why = f"the lower bound after {count} blocks is above {percent(threshold)}"
        return _decision(Action.ACCEPT, values, alpha, threshold, noise, why)
    if count >= last and not faster:
        why = f"the lower bound after the last look, at {count} blocks, is not above {percent(threshold)}"
        return _decision(Action.REJECT, values, rule.alphas[-1], threshold, noise, why)
    if count >= last and (count == rule.max_blocks or not _may_be_excluded(seen, rule)):
        why = f"rare stalls, unseen in {len(seen)} blocks, could make up for so small a gain"
        return _decision(Action.REJECT, values, rule.alphas[-1], threshold, noise, why)
    if rule.futility_from and max(2, rule.futility_from) <= count < last:
        left = chance_of_acceptance(values, threshold, last=last, alpha=rule.alphas[-1], known=known)
        if left < rule.futility_chance:
            why = f"after {count} blocks the chance to pass {percent(threshold)} at the last look is {left:.1%}"
            return _decision(Action.REJECT, values, alpha or rule.alphas[-1], threshold, noise, why)
    return _decision(Action.CONTINUE, values, alpha or rule.alphas[-1], threshold, noise, "")


def _may_be_excluded(seen: Sequence[float], rule: Rule) -> bool:
    """Return whether stalls could be excluded with all blocks that may follow, if their mean is that of these."""
    return mean_and_error(seen)[0] > hidden_loss(len(rule.selecting) + rule.max_blocks, rule.stall)


def _decision(
    action: Action, values: Sequence[float], alpha: float, threshold: float, noise: float, why: str
) -> Decision:
    mean = mean_and_error(values)[0]
    return Decision(action, len(values), mean, lower_t(values, alpha), alpha, threshold, noise, why)


def percent(log_ratio: float) -> str:
    """Return a log ratio as a gain for people: `+2.96%`."""
    return f"{math.expm1(log_ratio):+.2%}" if math.isfinite(log_ratio) else "-"
