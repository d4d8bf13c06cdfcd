"""Measurement protocols: which prompts, how many tokens, how many at a time, and whether answers are scored."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.load.workload import Workload
from specpilot_sglang.eval.suites import Item, instructed, open_suite


@dataclass(frozen=True)
class Protocol:
    """One protocol. All are greedy and honour the end token.

    Attributes:
        name: what `find` is called with.
        about: one phrase.
        counts: suites and how many items a block has of each.
        max_new_tokens: most tokens an answer.
        concurrency: requests in flight.
        first: each block takes the next items in the source's order, the first block the first ones; otherwise a
            seed deals the pool out.
        whole: also items that the packaged drafter was trained on.
        thinking: the chat template's `enable_thinking`; None leaves it to the template.
        scored: answers are scored, so prompts carry their suite's instruction.
    """

    name: str
    about: str
    counts: tuple[tuple[str, int], ...]
    max_new_tokens: int
    concurrency: int
    first: bool = False
    whole: bool = False
    thinking: bool | None = None
    scored: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the protocol as JSON values."""
        return asdict(self)

    def workload(
        self,
        *,
        seed: int = 0,
        block: int = 0,
        blocks: int = 1,
        source: str = "auto",
        files: Mapping[str, str] | None = None,
        concurrency: int | None = None,
    ) -> Workload:
        """Return the prompts of one block; different blocks share none.

        Args:
            seed: of the draw, and of the client.
            block: index of the block.
            blocks: how many blocks will be drawn under this seed.
            source: where suites are read from, see `suites.load`.
            files: JSON-lines files that replace suites, by suite name.
            concurrency: requests in flight, instead of the protocol's.

        Raises:
            SpecPilotError: a suite cannot be read, or has too few items for so many blocks.
        """
        items: list[Item] = []
        origins = []
        for name, count in self.counts:
            given = f"{name}={files[name]}" if files and name in files else name
            suite = open_suite(given, source=source, whole=self.whole)
            items += _block_of(suite.items, name, count, block, blocks, None if self.first else seed)
            origins.append({"suite": name, **suite.origin.to_json()})
        chosen = instructed(items) if self.scored else items
        many = concurrency or self.concurrency
        return Workload(tuple(chosen), self.max_new_tokens, many, seed, thinking=self.thinking, origins=tuple(origins))


def _block_of(
    items: tuple[Item, ...], suite: str, count: int, block: int, blocks: int, seed: int | None
) -> tuple[Item, ...]:
    if not 0 <= block < blocks:
        raise SpecPilotError(f"block {block} of {blocks} blocks", fix="count from 0")
    if count * blocks > len(items):
        text = f"{blocks} blocks of {count} {suite} items need {count * blocks}, there are {len(items)}"
        raise SpecPilotError(text, fix="measure fewer blocks, or give a larger source")
    dealt = list(items)
    if seed is not None:
        random.Random(f"{seed}/{suite}").shuffle(dealt)
    return tuple(dealt[block * count : (block + 1) * count])


_PROTOCOLS = (
    Protocol(
        "paper",
        "the published protocol: first six items of five suites, 30 requests of up to 2,048 tokens, thinking on",
        (("gsm8k", 6), ("math", 6), ("humaneval", 6), ("mbpp", 6), ("mt-bench", 6)),
        max_new_tokens=2048,
        concurrency=1,
        first=True,
        whole=True,
        thinking=True,
    ),
    Protocol(
        "batched",
        "240 requests, 32 at a time, of up to 2,048 tokens, with an accuracy check",
        (("gsm8k", 120), ("humaneval", 120)),
        max_new_tokens=2048,
        concurrency=32,
        scored=True,
    ),
    Protocol(
        "smoke",
        "8 requests, 4 at a time, of up to 48 tokens: does everything work, on a CPU too",
        (("gsm8k", 4), ("humaneval", 2), ("mt-bench", 2)),
        max_new_tokens=48,
        concurrency=4,
    ),
)

PROTOCOLS: dict[str, Protocol] = {protocol.name: protocol for protocol in _PROTOCOLS}


def find(name: str) -> Protocol:
    """Return the protocol called `name`; raise `SpecPilotError` that lists the known names."""
    try:
        return PROTOCOLS[name]
    except KeyError:
        raise SpecPilotError(f"unknown protocol {name!r}", fix=f"use one of {', '.join(PROTOCOLS)}") from None
