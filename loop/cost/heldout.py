"""Compares predictions with loads that no fit has seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.cost.plan import Case, Observation, accept_length, speed_of, tokens_of
from specpilot_sglang.loop.cost.simulate import loads_of
from specpilot_sglang.loop.cost.table import CostTable


@dataclass(frozen=True)
class Compared:
    """One held-out load.

    Attributes:
        case: which.
        measured: output tokens a second.
        predicted: the same, from the table and this load's own accept length.
        transferred: the same, but with the accept length too from the fitted loads' distribution; None where they
            have none of this suite.
        speedup, predicted_speedup: over plain decoding of the same prompts; None where that was not measured.
        accept_length: measured; NaN for plain decoding.
        transferred_length: of the fitted loads' distribution at this block, or at a larger one, cut; None as above.
    """

    case: Case
    measured: float
    predicted: float
    transferred: float | None
    speedup: float | None
    predicted_speedup: float | None
    accept_length: float
    transferred_length: float | None

    @property
    def error(self) -> float:
        """Relative error of the predicted speed."""
        return self.predicted / self.measured - 1

    @property
    def transferred_error(self) -> float | None:
        """Relative error of the speed predicted with a predicted accept length."""
        return None if self.transferred is None else self.transferred / self.measured - 1

    @property
    def speedup_error(self) -> float | None:
        """Relative error of the predicted speed-up."""
        if self.speedup is None or self.predicted_speedup is None:
            return None
        return self.predicted_speedup / self.speedup - 1

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        errors = {name: getattr(self, name) for name in ("error", "transferred_error", "speedup_error")}
        return {**asdict(self), **errors}


def compare(table: CostTable, observations: Sequence[Observation], *, held_out: bool = True) -> list[Compared]:
    """Predict every held-out load (or, for the fit's own error, every fitted one) and compare; rounds are one."""
    cases = dict.fromkeys(o.case for o in observations if o.case.held_out == held_out)
    return [_one(table, case, observations) for case in cases]


def _one(table: CostTable, case: Case, all_of_them: Sequence[Observation]) -> Compared:
    loads, rounds = loads_of(table), [o for o in all_of_them if o.case == case]
    tokens, measured = tokens_of(rounds), speed_of(rounds)
    plain_s = sum(loads.plain_s(o.requests, case.concurrency) for o in rounds)
    if not case.block:
        return Compared(case, measured, tokens / plain_s, None, None, None, math.nan, None)

    def speed(length: float) -> float:
        return tokens / sum(loads.speculative_s(o.requests, case.concurrency, case.block, length) for o in rounds)

    length, accepted = _transferred(table, case), accept_length(rounds)
    predicted, plain = speed(accepted), _plain_of(case, all_of_them)
    return Compared(
        case=case,
        measured=measured,
        predicted=predicted,
        transferred=None if length is None else speed(length),
        speedup=measured / speed_of(plain) if plain else None,
        predicted_speedup=predicted / (tokens / plain_s) if plain else None,
        accept_length=accepted,
        transferred_length=length,
    )


def _transferred(table: CostTable, case: Case) -> float | None:
    try:
        return table.distribution(case.suite, case.block).length
    except SpecPilotError:
        return None


def _plain_of(case: Case, observations: Sequence[Observation]) -> list[Observation]:
    same = (case.concurrency, case.suite)
    return [o for o in observations if not o.case.block and (o.case.concurrency, o.case.suite) == same]
