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
    def tok_s(self) -> float:
        """Output tokens a second."""
        return sum(r.output for r in self.requests) / self.seconds

    @property
    def accept_length(self) -> float:
        """Tokens a verify step, the prefill's left out; NaN for plain decoding."""
        tokens = sum(r.output - 1 for r in self.requests)
        return tokens / self.steps if self.steps else math.nan


def cases_of(blocks: Sequence[int], concurrency: Sequence[int], suite: str) -> tuple[Case, ...]:
    """Return the fitted cases: plain decoding and every block, at every concurrency."""
    return tuple(Case(block, c, suite) for block in (0, *blocks) for c in concurrency)
