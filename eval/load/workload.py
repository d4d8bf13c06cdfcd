"""What is asked of a server in one load run, and how its prompts are drawn."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.suites import Item


@dataclass(frozen=True)
class Workload:
    """What is asked of a server.

    Attributes:
        items: prompts in the order they are sent; none may come twice.
        max_new_tokens: most tokens an answer.
        concurrency: requests in flight.
        seed: of the client and, at a temperature, of sampling.
        ignore_eos: whether answers go on after the end token.
        temperature: 0 is greedy.
        thinking: the chat template's `enable_thinking`; None leaves it to the template.
        origins: where the prompts were read from, for provenance.
    """

    items: tuple[Item, ...]
    max_new_tokens: int
    concurrency: int
    seed: int = 0
    ignore_eos: bool = False
    temperature: float = 0.0
    thinking: bool | None = None
    origins: tuple[Mapping[str, Any], ...] = ()

    def check(self) -> None:
        """Raise `SpecPilotError` unless the workload can be measured: no repeats, which caches would answer."""
        if not self.items:
            raise SpecPilotError("the workload has no prompts", fix="give at least one")
        if self.max_new_tokens < 1 or self.concurrency < 1:
            raise SpecPilotError("the workload asks for nothing", fix="give at least one token and one request")
        for what, values in (("id", [i.id for i in self.items]), ("prompt", [i.text for i in self.items])):
            if len(set(values)) != len(values):
                twice = next(v for v in values if values.count(v) > 1)
                raise SpecPilotError(f"{what} {twice[:80]!r} comes twice in a workload", fix="send each prompt once")

    def about(self) -> dict[str, Any]:
        """Return the workload's settings and a hash of its prompts as JSON values, for provenance."""
        texts = json.dumps([[i.id, i.text] for i in self.items], ensure_ascii=True)
        suites = sorted({i.suite for i in self.items})
        settings = {name: getattr(self, name) for name in _SETTINGS}
        about = {"requests": len(self.items), "suites": suites, **settings, "prompts_sha256": _sha256(texts)}
        return {**about, "origins": [dict(origin) for origin in self.origins]}


_SETTINGS = ("max_new_tokens", "concurrency", "seed", "ignore_eos", "temperature", "thinking")


def draw(items: Sequence[Item], count: int, *, seed: int, block: int = 0, blocks: int = 1) -> tuple[Item, ...]:
    """Draw the prompts of one block: those of different blocks share none, and a seed fixes them all.

    Args:
        items: pool.
        count: prompts a block.
        seed: of the order in which the pool is dealt out.
        block: index of this block.
        blocks: blocks that will be drawn from this pool under this seed.

    Raises:
        SpecPilotError: the pool is too small for `blocks` blocks of fresh prompts.
    """
    if not 0 <= block < blocks:
        raise SpecPilotError(f"block {block} of {blocks} blocks", fix="count from 0")
    if count * blocks > len(items):
        fix = "draw fewer prompts or blocks, or give more suites"
        raise SpecPilotError(
            f"{blocks} blocks of {count} prompts need {count * blocks}, there are {len(items)}", fix=fix
        )
    dealt = sorted(items, key=lambda item: item.id)
    random.Random(seed).shuffle(dealt)
    return tuple(dealt[block * count : (block + 1) * count])


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
