"""What is measured for a cost table, and one load as it was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specpilot_sglang.loop.cost.simulate import Request


@dataclass(frozen=True)
class Case:
    """One load: `block` 0 is plain decoding; a held-out case is measured and never fitted."""

    block: int
    concurrency: int
    suite: str
    held_out: bool = False

    def __str__(self) -> str:
        """Return the case in words."""
        what = f"block {self.block}" if self.block else "plain decoding"
        return f"{what}, {self.suite}, {self.concurrency} in flight{', held out' if self.held_out else ''}"


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        name: of the deployment.
        model: target's folder.
        draft: drafter's folder.
        cases: all loads; those of one block share a server.
        prompts: requests a load at the least; never fewer than twice its concurrency.
        max_new_tokens: of every answer; they go on after the end token, so that all have the same length.
        dtype: of the servers.
        server_args: added to all servers.
        labels: what the table must say of itself.
        rounds: times that every load is run, with new prompts each time.
        together: whether all servers are up at the same time and take turns load by load, so that a host whose speed
            changes is the same to all of them; for hosts that have room.
    """

    name: str
    model: Path
    draft: Path
    cases: tuple[Case, ...]
    prompts: int = 6
    max_new_tokens: int = 64
    dtype: str = "bfloat16"
    server_args: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    rounds: int = 1
    together: bool = False


@dataclass(frozen=True)
class Observation:
    """One load as it was measured.

    Attributes:
        case: which.
        seconds: from the first request to the last answer.
        requests: prompt and answer tokens of each.
        steps: verify steps of all requests; 0 for plain decoding.
        counts: steps by accepted drafts.
    """

    case: Case
    seconds: float
    requests: tuple[Request, ...]
    steps: int
    counts: tuple[int, ...] = ()

    @property
    def accept_length(self) -> float:
        """Tokens a verify step, the prefill's left out; NaN for plain decoding."""
        return accept_length([self])


def tokens_of(observations: Sequence[Observation]) -> int:
    """Return the output tokens of some loads."""
    return sum(r.output for o in observations for r in o.requests)


def speed_of(observations: Sequence[Observation]) -> float:
    """Return output tokens a second over some loads."""
    return tokens_of(observations) / math.fsum(o.seconds for o in observations)


def accept_length(observations: Sequence[Observation]) -> float:
    """Return tokens a verify step over some loads, the prefill's left out; NaN for plain decoding."""
    steps = sum(o.steps for o in observations)
    return sum(r.output - 1 for o in observations for r in o.requests) / steps if steps else math.nan


def cases_of(blocks: Sequence[int], concurrency: Sequence[int], suite: str) -> tuple[Case, ...]:
    """Return the fitted cases: plain decoding and every block, at every concurrency."""
    return tuple(Case(block, c, suite) for block in (0, *blocks) for c in concurrency)
