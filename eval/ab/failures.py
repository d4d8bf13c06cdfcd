"""Whose failure it was: the infrastructure's, which is tried again, or the candidate's, which counts against it."""

from __future__ import annotations

from enum import StrEnum

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.load.guards import RunRefusedError

#: How a refusal begins that a busy machine can cause as well as a patched clock.
_CLOCK = ("the client claims", "the client did not print")
#: Kills of servers of one block that are nobody's fault; a candidate that always kills itself is found out then.
MOST_KILLS = 5
#: What a server that the plugin stopped prints; no neighbour on the host can cause it.
_PLUGIN_STOPPED = "specpilot: error:"


class Blame(StrEnum):
    """Who a failed attempt is counted against."""

    INFRASTRUCTURE = "infrastructure"
    CANDIDATE = "candidate"


class CandidateFailedError(SpecPilotError):
    """The candidate could not be measured, through its own fault; `reasons` lists why."""

    def __init__(self, what: str, reasons: tuple[str, ...], *, where: str = "") -> None:
        self.reasons = reasons
        super().__init__(what, where=where, fix="repair the candidate; it is rejected as it is")


class ServerKilledError(SpecPilotError):
    """SIGKILL ended a server under test: by its own hand or not, which cannot be told apart."""


class InfrastructureError(SpecPilotError):
    """A block failed twice without the candidate's fault; finished blocks are kept and a new start goes on."""


def blame(error: BaseException, *, candidate: bool, before: Blame | None, repeated: bool) -> Blame:
    """Return who a failed attempt is counted against.

    Args:
        error: what happened.
        candidate: whether it happened in the candidate's arm; the incumbent's failures never count against it.
        before: blame of this block's former attempt, None for the first.
        repeated: whether that attempt failed in the candidate's arm too.
    """
    if not candidate or isinstance(error, OSError):
        return Blame.INFRASTRUCTURE
    if isinstance(error, RunRefusedError) and not all(reason.startswith(_CLOCK) for reason in error.reasons):
        return Blame.CANDIDATE
    if _PLUGIN_STOPPED in str(error):
        return Blame.CANDIDATE
    return Blame.CANDIDATE if before is not None and repeated else Blame.INFRASTRUCTURE


def reasons_of(error: BaseException) -> tuple[str, ...]:
    """Return the single reasons of an error, one line each."""
    if isinstance(error, RunRefusedError):
        return error.reasons
    text = error.line() if isinstance(error, SpecPilotError) else f"{type(error).__name__}: {error}"
    return (" ".join(text.split())[:400],)
