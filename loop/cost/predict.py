"""Predicts speed and speed-up of a deployment at settings that were not measured."""

from __future__ import annotations

from dataclasses import dataclass

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.cost.distribution import AcceptDistribution
from specpilot_sglang.loop.cost.fit import Fit, fit
from specpilot_sglang.loop.cost.table import CostTable, StepTime


@dataclass(frozen=True)
class Setting:
    """What is asked.

    Attributes:
        accept: accepted drafts of one drafter block under this setting (for a tree: along its best path).
        block: tokens that the drafter proposes at once, the last committed one included.
        batch: running requests.
        budget: nodes a request that one exact pass verifies; None: a chain, so `block`.
        cheap_rounds: passes over the nested 8-bit view before the exact one; 0: one level.
        cheap_ratio: time of a cheap pass over that of an exact one.
        agreement: chance that the cheap pass chooses the exact pass's token.
    """

    accept: AcceptDistribution
    block: int
    batch: int = 1
    budget: int | None = None
    cheap_rounds: int = 0
    cheap_ratio: float = 1.0
    agreement: float = 1.0


@dataclass(frozen=True)
class Prediction:
    """One cycle: a draft and a verify, or with two levels all cheap rounds and the exact pass.

    Attributes:
        tokens: emitted a cycle and request.
        cycle_s: seconds a cycle.
        draft_s, verify_s, overhead_s: its parts; None when the table has only whole steps.
        ar_s: seconds of a plain decoding step at the same batch.
        cost: cycle over plain step, `c` in speed-up = tau / c.
        speedup: over plain decoding, prompts left out.
        tok_s: output tokens a second of all requests, prompts left out.
    """

    tokens: float
    cycle_s: float
    draft_s: float | None
    verify_s: float | None
    overhead_s: float | None
    ar_s: float

    @property
    def cost(self) -> float:
        """The cycle's cost in plain steps."""
        return self.cycle_s / self.ar_s

    @property
    def speedup(self) -> float:
        """Tokens a cycle over its cost."""
        return self.tokens / self.cost

    def tok_s(self, batch: int) -> float:
        """Return output tokens a second of `batch` requests."""
        return batch * self.tokens / self.cycle_s


@dataclass(frozen=True)
class Model:
    """Fitted step times of one table; `draft`, `verify` and `overhead` are None when it has only whole steps."""

    ar: Fit
    step: Fit
    draft: Fit | None
    verify: Fit | None
    overhead: Fit | None

    def draft_at(self, batch: float, block: int) -> float | None:
        """Return seconds of the drafter's part of a step."""
        return self.draft.at(batch, block) if self.draft else None

    def step_at(self, batch: float, block: int, width: int) -> float:
        """Return seconds of a whole step: drafting `block` tokens and verifying `width`."""
        if self.draft is None or self.verify is None or self.overhead is None:
            return self.step.at(batch, width)
        return self.draft.at(batch, block) + self.verify.at(batch, width) + self.overhead.at(batch, width)


def model_of(table: CostTable) -> Model:
    """Fit a table's step times."""
    ar = fit([(p.batch, p.width, p.step_s) for p in table.ar])
    step = fit([(p.batch, p.width, p.step_s) for p in table.spec])
    split = [p for p in table.spec if p.draft_s is not None and p.verify_s is not None]
    if len(split) < len(table.spec):
        return Model(ar, step, None, None, None)
    draft = fit([(p.batch, p.width, p.draft_s or 0.0) for p in split])
    verify = fit([(p.batch, p.width, p.verify_s or 0.0) for p in split])
    return Model(ar, step, draft, verify, fit([(p.batch, p.width, _positive(p)) for p in split]))


def _positive(point: StepTime) -> float:
    # A step that overlaps its own bookkeeping with the passes leaves nothing; a fit needs a positive time.
    return max(point.overhead_s or 0.0, 1e-9)


def predict(table: CostTable, setting: Setting) -> Prediction:
    """Predict one setting.

    With two levels a cycle drafts and cheaply verifies `cheap_rounds` times, drafts once more, and one exact pass
    verifies all cheaply accepted tokens and the newest block together.

    Raises:
        SpecPilotError: two levels from a table without separate draft and verify times, or absurd arguments.
    """
    _check(setting)
    model = model_of(table)
    tau, batch = setting.accept.length, setting.batch
    width = setting.budget or setting.block
    ar_s = model.ar.at(batch, 1)
    if not setting.cheap_rounds:
        draft = model.draft_at(batch, setting.block)
        verify = model.verify.at(batch, width) if model.verify else None
        overhead = model.overhead.at(batch, width) if model.overhead else None
        return Prediction(tau, model.step_at(batch, setting.block, width), draft, verify, overhead, ar_s)
    if model.draft is None or model.verify is None or model.overhead is None:
        fix = "measure the deployment with `specpilot cost measure`"
        raise SpecPilotError("two levels need draft and verify times apart", where=table.name, fix=fix)
    rounds, pending = setting.cheap_rounds, setting.cheap_rounds * tau
    draft = (rounds + 1) * model.draft.at(batch, setting.block)
    cheap = rounds * setting.cheap_ratio * model.verify.at(batch, width)
    exact = model.verify.at(batch, width + pending)
    overhead = (rounds + 1) * model.overhead.at(batch, width)
    tokens = two_level_tokens(tau, rounds, setting.agreement)
    return Prediction(tokens, draft + cheap + exact + overhead, draft, cheap + exact, overhead, ar_s)


def two_level_tokens(tau: float, rounds: int, agreement: float) -> float:
    """Return the tokens a two-level cycle emits.

    Of `rounds * tau` cheaply accepted tokens the exact pass keeps those before the first disagreement; there it
    emits its own token instead. Without any, it goes on into the newest block and emits `tau` more.
    """
    pending = rounds * tau
    whole = agreement**pending
    kept = pending if agreement == 1.0 else agreement * (1 - whole) / (1 - agreement)
    return kept + whole * tau + (1 - whole)


def _check(setting: Setting) -> None:
    wrong = {
        "block": setting.block < 2,
        "batch": setting.batch < 1,
        "budget": setting.budget is not None and setting.budget < 2,
        "cheap_rounds": setting.cheap_rounds < 0,
        "cheap_ratio": not 0 < setting.cheap_ratio <= 1.5,
        "agreement": not 0 < setting.agreement <= 1,
    }
    bad = [name for name, is_wrong in wrong.items() if is_wrong]
    if bad:
        raise SpecPilotError(f"{bad[0]} is out of range", where=bad[0], fix="see `specpilot cost predict --help`")
