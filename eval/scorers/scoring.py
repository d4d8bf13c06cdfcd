"""Scores answers to suite items, and sums them up a suite with an interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.parallel import Progress, run_all, silent
from specpilot_sglang.eval.scorers.code import program
from specpilot_sglang.eval.scorers.jail import require_jail, run_jailed
from specpilot_sglang.eval.scorers.numeric import same_number
from specpilot_sglang.eval.statistics import binomial_interval
from specpilot_sglang.eval.suites import Item

_END_OF_THOUGHT = "</think>"


@dataclass(frozen=True)
class Score:
    """One scored answer; `detail` is the number found, or why the code failed."""

    id: str
    suite: str
    correct: bool
    detail: str


@dataclass(frozen=True)
class Accuracy:
    """Share of right answers of one suite, with its exact 95% interval."""

    suite: str
    correct: int
    total: int
    rate: float
    low: float
    high: float

    def to_json(self) -> dict[str, Any]:
        """Return the accuracy as JSON values."""
        return asdict(self)


def _number(item: Item, answer: str) -> tuple[bool, str]:
    return same_number(answer, item.reference)


def _code(item: Item, answer: str) -> tuple[bool, str]:
    outcome = run_jailed(program(item, answer))
    return outcome.passed, outcome.reason


#: Suites that can be scored; those under `_JAILED` run generated code.
SCORERS: dict[str, Callable[[Item, str], tuple[bool, str]]] = {
    **dict.fromkeys(("gsm8k", "aime-2024", "aime-2025"), _number),
    **dict.fromkeys(("humaneval", "mbpp"), _code),
}
_JAILED = {"humaneval", "mbpp"}


def scored(items: Sequence[Item]) -> list[Item]:
    """Return the items whose suite has a scorer and that have what it needs."""
    return [i for i in items if i.suite in SCORERS and (i.tests if i.suite in _JAILED else i.reference)]


def score(item: Item, answer: str) -> Score:
    """Score one answer; a model's thoughts before `</think>` are left out.

    Raises:
        SpecPilotError: the suite has no scorer, or generated code cannot be jailed here.
    """
    if item.suite not in SCORERS:
        raise SpecPilotError(f"suite {item.suite!r} has no scorer", fix=f"use one of {', '.join(SCORERS)}")
    correct, detail = SCORERS[item.suite](item, answer.rpartition(_END_OF_THOUGHT)[2])
    return Score(item.id, item.suite, correct, detail)


def score_all(
    items: Sequence[Item], answers: Mapping[str, str], *, concurrency: int = 2, progress: Progress = silent
) -> list[Score]:
    """Score all items that can be; one without an answer counts as wrong.

    Args:
        items: what was asked.
        answers: answer texts by item id.
        concurrency: programs run at the same time.
        progress: called with (done, total).
    """
    chosen = scored(items)
    if any(item.suite in _JAILED for item in chosen):
        require_jail()

    def one(item: Item) -> Score:
        answer = answers.get(item.id)
        return Score(item.id, item.suite, False, "no answer") if answer is None else score(item, answer)

    return run_all(one, chosen, concurrency, progress)


def by_suite(scores: Sequence[Score]) -> list[Accuracy]:
    """Return the accuracy of each suite in order of appearance."""
    groups: dict[str, list[Score]] = defaultdict(list)
    for row in scores:
        groups[row.suite].append(row)
    return [_accuracy(suite, rows) for suite, rows in groups.items()]


def _accuracy(suite: str, rows: Sequence[Score]) -> Accuracy:
    right = sum(row.correct for row in rows)
    low, high = binomial_interval(right, len(rows))
    return Accuracy(suite, right, len(rows), right / len(rows), low, high)
