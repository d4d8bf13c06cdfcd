"""Sealed prompts: drawn after the candidate is frozen, from a seed nobody knew before, and not in any public list.

The items come from the same suites as the public ones but are none of them, and their numbers are replaced and the
request is framed anew, so that a candidate which recognises a benchmark's texts does not recognise these.
"""

from __future__ import annotations

import json
import random
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.durable import write_json
from specpilot_sglang.eval.suites import Item

_NUMBER = re.compile(r"(?<![\w.])\d{1,6}(?![\w.]*\w)")
_BEFORE = (
    "",
    "Here is a task for you.\n\n",
    "Please work on this carefully.\n\n",
    "I need some help with the following.\n\n",
    "Consider the following request.\n\n",
)
_AFTER = ("", "\n\nExplain how you got there.", "\n\nKeep it clear.", "\n\nWrite in full sentences.")


@dataclass(frozen=True)
class Sealed:
    """Prompts of the confirmation.

    Attributes:
        frozen_sha256: the frozen candidate they were drawn for.
        drawn_at: seconds since the epoch, after the freezing.
        seed: what fixed the draw; 64 random bits.
        items: prompts of all blocks, block by block.
        answers: further prompts, for token forcing.
        per_block: prompts a block.
    """

    frozen_sha256: str
    drawn_at: float
    seed: int
    items: tuple[Item, ...]
    answers: tuple[Item, ...]
    per_block: int

    def block(self, index: int) -> tuple[Item, ...]:
        """Return the prompts of one block; raise `SpecPilotError` when there are no more."""
        chosen = self.items[index * self.per_block : (index + 1) * self.per_block]
        if len(chosen) < self.per_block:
            raise SpecPilotError(f"no sealed prompts for block {index}", fix="draw more blocks")
        return chosen

    def to_json(self) -> dict[str, Any]:
        """Return the draw as JSON values."""
        return asdict(self)


def draw(
    pool: Sequence[Item],
    used: Iterable[str],
    *,
    frozen_sha256: str,
    per_block: int,
    blocks: int,
    answers: int,
    folder: Path,
    fewest: int | None = None,
) -> Sealed:
    """Draw sealed prompts into `folder`, or return those drawn there before for the same candidate.

    Args:
        pool: items of the suites.
        used: ids of items that the selection has shown to the candidate.
        frozen_sha256: of the frozen candidate.
        per_block: prompts a block.
        blocks: most blocks of the confirmation.
        answers: further prompts, for token forcing.
        folder: where `sealed.json` goes.
        fewest: blocks that a small pool must have prompts for; `blocks` by default.

    Raises:
        SpecPilotError: the pool has too few unused items, or another candidate's draw is there.
    """
    path = folder / "sealed.json"
    if path.exists():
        former = load_sealed(folder)
        if former.frozen_sha256 != frozen_sha256:
            raise SpecPilotError("sealed prompts of another candidate", where=path, fix="choose another folder")
        return former
    seed = secrets.randbits(64)
    rng = random.Random(seed)
    shown = set(used)
    fresh = sorted((item for item in pool if item.id not in shown), key=lambda item: item.id)
    if fewest is not None:
        blocks = min(blocks, max(fewest, (len(fresh) - answers) // per_block))
    timed = per_block * blocks
    wanted = timed + answers
    if wanted > len(fresh):
        fix = "give more suites, or fewer prompts a block"
        raise SpecPilotError(f"{wanted} sealed prompts are needed, {len(fresh)} items are unused", fix=fix)
    items = tuple(disguise(item, rng) for item in rng.sample(fresh, wanted))
    sealed = Sealed(frozen_sha256, time.time(), seed, items[:timed], items[timed:], per_block)
    write_json(path, sealed.to_json())
    return sealed


def disguise(item: Item, rng: random.Random) -> Item:
    """Return the item with other numbers and another frame; its reference answer no longer holds and is dropped."""

    def other(match: re.Match[str]) -> str:
        text = match[0]
        low = 10 ** (len(text) - 1) if len(text) > 1 else 2
        return str(rng.randrange(low, max(low + 1, 10 ** len(text))))

    text = rng.choice(_BEFORE) + _NUMBER.sub(other, item.text) + rng.choice(_AFTER)
    return replace(item, id=f"sealed/{item.id}", text=text, reference="")


def load_sealed(folder: Path) -> Sealed:
    """Read what `draw` wrote; raise `SpecPilotError` when it is missing or something else."""
    path = folder / "sealed.json"
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        lists = {name: tuple(Item(**item) for item in row[name]) for name in ("items", "answers")}
        return Sealed(**{**row, **lists})
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise SpecPilotError(f"no sealed prompts ({exc!r})", where=path, fix="draw them first") from exc
