"""Loads suites by name, or a user's own prompts from a file, in the source's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.suites import formats
from specpilot_sglang.eval.suites.catalogue import ALIASES, SUITES, SuiteSpec, find
from specpilot_sglang.eval.suites.formats import ToItem
from specpilot_sglang.eval.suites.item import Item
from specpilot_sglang.eval.suites.sources import Origin, read_file, read_rows


@dataclass(frozen=True)
class Suite:
    """A loaded suite: all its items, and where they came from."""

    name: str
    items: tuple[Item, ...]
    origin: Origin


def load(
    suite: str, *, limit: int | None = None, skip: int = 0, source: str = "auto", whole: bool = False
) -> list[Item]:
    """Return items `skip ... skip + limit` of a suite in the source's order.

    Args:
        suite: a suite's name, or `NAME=FILE.jsonl`.
        limit: most items; None for all.
        skip: items left out at the start.
        source: `auto`, `package` or `hub`.
        whole: also items that the packaged drafter was trained on (GSM8K's first 1,000); they are left out otherwise.

    Raises:
        SpecPilotError: unknown suite, nothing left after `skip`, or the source cannot be reached or read.
    """
    loaded = open_suite(suite, source=source, whole=whole)
    chosen = list(loaded.items[skip:] if limit is None else loaded.items[skip : skip + limit])
    if not chosen:
        raise SpecPilotError(f"suite {suite} has {len(loaded.items)} items, none after {skip}", fix="skip fewer items")
    return chosen


def open_suite(suite: str, *, source: str = "auto", whole: bool = False) -> Suite:
    """Return a whole suite with its origin; arguments and errors as in `load`."""
    name, given, path = suite.partition("=")
    if given:
        spec = SUITES.get(ALIASES.get(name, name))
        rows, origin = read_file(Path(path))
        to_item, name, first = (spec.to_item, spec.name, 0) if spec else (formats.plain(name), name, 0)
        if spec and rows and not _fits(spec.to_item, rows[0]):
            to_item = formats.plain(name)  # own prompts under a known suite's name
    else:
        spec = find(suite)
        rows, origin = read_rows(spec, source)
        to_item, name, first = spec.to_item, spec.name, 0 if whole else spec.trained_rows
    items = _items(rows, to_item, first, origin)
    if not items:
        raise SpecPilotError(f"suite {name} has no items", where=origin.name, fix="give another source")
    return Suite(name, tuple(items), origin)


def instructed(items: Sequence[Item]) -> list[Item]:
    """Return items with their suite's instruction around the prompt, so that answers can be scored."""
    return [replace(item, text=_instruction(item.suite).format(text=item.text)) for item in items]


def _instruction(suite: str) -> str:
    spec: SuiteSpec | None = SUITES.get(suite)
    return spec.instruction if spec else "{text}"


def _items(rows: list[dict[str, Any]], to_item: ToItem, first: int, origin: Origin) -> list[Item]:
    items: list[Item] = []
    for index, row in enumerate(rows):
        try:
            item = to_item(row, index)
        except (KeyError, TypeError, IndexError, AttributeError) as exc:
            where = f"{origin.name}:{index + 1}"
            fix = "use a row with the suite's fields, or with `prompt`"
            raise SpecPilotError(f"not a row of this suite ({exc!r})", where=where, fix=fix) from exc
        if item is not None and index >= first:
            items.append(item)
    ids = [item.id for item in items]
    if len(set(ids)) != len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise SpecPilotError(f"item {twice!r} comes twice", where=origin.name, fix="give every row its own id")
    return items


def _fits(to_item: ToItem, row: dict[str, Any]) -> bool:
    try:
        to_item(row, 0)
    except (KeyError, TypeError, IndexError, AttributeError):
        return False
    return True
