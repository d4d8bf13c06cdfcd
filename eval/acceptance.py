"""Accept length: tokens emitted a verify step, over a recorded run of a speculative server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from specpilot_sglang.eval.records import Request
from specpilot_sglang.eval.statistics import ratio_of_sums


@dataclass(frozen=True)
class Acceptance:
    """Accept length of one suite.

    Attributes:
        suite: suite name.
        requests: answered requests with at least one verify step.
        tokens: tokens out of verify steps; the first token of an answer comes from the prefill and is not one.
        steps: verify steps.
        length: tokens a step, bonus token included; NaN without steps.
        error: its standard error over requests.
        sglang_length: SGLang's own figure, which counts the prefill's token too and is a little higher.
    """

    suite: str
    requests: int
    tokens: int
    steps: int
    length: float
    error: float
    sglang_length: float


def by_suite(requests: Sequence[Request]) -> list[Acceptance]:
    """Return the accept length of each suite in order of appearance; failed requests are left out."""
    groups: dict[str, list[Request]] = defaultdict(list)
    for request in requests:
        if not request.error:
            groups[request.suite].append(request)
    return [_acceptance(suite, rows) for suite, rows in groups.items()]


def _acceptance(suite: str, rows: Sequence[Request]) -> Acceptance:
    stepped = [r for r in rows if r.verify_steps > 0]
    tokens = [len(r.output_ids) - 1 for r in stepped]
    steps = [r.verify_steps for r in stepped]
    length, error = ratio_of_sums(tokens, steps)
    with_first = (sum(tokens) + len(stepped)) / sum(steps) if steps else float("nan")
    return Acceptance(suite, len(stepped), sum(tokens), sum(steps), length, error, with_first)
