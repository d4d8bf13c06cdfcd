"""What the judge says: a status, and what each gate found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """Why a candidate is promoted or not. In the order of gravity: the first that applies is the verdict's."""

    TAMPERED = "tampered"  # judge, benchmark client or frozen candidate are not what they were
    NOT_LOSSLESS = "not_lossless"  # simulated or relaxed acceptance
    CLOCK = "clock"  # times that our own clock does not confirm, or work outside the timed window
    CACHED = "cached"  # answers or prefixes from a cache that should be empty
    STALE_PROMPTS = "stale_prompts"  # prompts that were seen before, or drawn before the candidate was frozen
    NOT_RUN = "not_run"  # not attested, or not on the hot path
    WRONG_ANSWERS = "wrong_answers"  # token forcing
    SHORTER_ANSWERS = "shorter_answers"
    FAILED = "failed"  # did not start, crashed, or failed requests
    SLOW_TAIL = "slow_tail"  # p99 latencies worse than noise
    NO_GAIN = "no_gain"
    NOT_CONFIRMED = "not_confirmed"  # the gain is gone on sealed prompts
    INCOMPLETE = "incomplete"  # evidence is missing; no decision either way
    ACCEPTED = "accepted"


@dataclass(frozen=True)
class GateResult:
    """What one gate found.

    Attributes:
        gate: its name.
        ok: whether the candidate passes.
        status: the verdict's status when it does not.
        reasons: one sentence each; figures when it passes.
    """

    gate: str
    ok: bool
    status: Status
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {"gate": self.gate, "ok": self.ok, "status": self.status.value, "reasons": list(self.reasons)}


def passed(gate: str, *figures: str) -> GateResult:
    """Return that a gate is passed."""
    return GateResult(gate, True, Status.ACCEPTED, figures)


def failed(gate: str, status: Status, reasons: Iterable[str]) -> GateResult:
    """Return that a gate is not passed."""
    return GateResult(gate, False, status, tuple(reasons))


def found(gate: str, status: Status, reasons: Sequence[str], *figures: str) -> GateResult:
    """Return that a gate is passed when there are no `reasons` against it."""
    return failed(gate, status, reasons) if reasons else passed(gate, *figures)


@dataclass(frozen=True)
class Verdict:
    """The judge's decision.

    Attributes:
        status: `accepted`, or the gravest status of the gates that were not passed.
        gates: every gate's result, also of those behind a failed one.
    """

    status: Status
    gates: tuple[GateResult, ...]

    @classmethod
    def of(cls, gates: Sequence[GateResult]) -> Verdict:
        """Return the verdict that follows from all gates."""
        order = list(Status)
        against = sorted((g.status for g in gates if not g.ok), key=order.index)
        return cls(against[0] if against else Status.ACCEPTED, tuple(gates))

    @property
    def accepted(self) -> bool:
        """Whether the candidate may be promoted."""
        return self.status is Status.ACCEPTED

    @property
    def cheating(self) -> bool:
        """Whether the evidence shows more than a candidate without a gain: it must not be tried again as it is."""
        order = list(Status)
        return order.index(self.status) <= order.index(Status.SHORTER_ANSWERS)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of the gates that were not passed, gravest first."""
        order = list(Status)
        against = sorted((g for g in self.gates if not g.ok), key=lambda g: order.index(g.status))
        return tuple(f"{g.gate}: {reason}" for g in against for reason in g.reasons)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        gates = [gate.to_json() for gate in self.gates]
        return {"status": self.status.value, "accepted": self.accepted, "reasons": list(self.reasons), "gates": gates}
