"""The loop's live view in the terminal: who is where, what came out, what was spent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specpilot_sglang.cli.console import ERR
from specpilot_sglang.loop.controller import history
from specpilot_sglang.loop.controller.context import Context

_ROWS = 12


@contextmanager
def watching(context: Context) -> Iterator[None]:
    """Show the loop while the block runs: a live table on a terminal, one line an event otherwise."""
    if not ERR.is_terminal:
        context.watch = _lines
        yield
        return
    with Live(console=ERR, refresh_per_second=2, get_renderable=lambda: view(context)):
        yield


def view(context: Context) -> Group:
    """Return the present state as something that rich prints."""
    rows = history.slots(context.journal)
    table = Table("round", "direction", "change", "status", "gain", title="last proposals")
    for row in rows[-_ROWS:]:
        trial = row["trial"]
        gain = trial.result.get("log_gain") if trial is not None else None
        change = str(row["propose"].result.get("note", {}).get("change", ""))[:60]
        shown = "" if gain is None else f"{100 * gain:+.1f}%"
        place = f"{row['round']}.{row['slot']}"
        table.add_row(place, str(row["propose"].spec["direction"]), Text(change), history.status(row), shown)
    spent = sum(float(row["propose"].result.get("usd") or 0.0) for row in rows)
    begun = context.journal.events("begin")
    hours = (time.time() - begun[0].time) / 3600 if begun else 0.0
    promoted = len(context.journal.events("promoted"))
    head = f"generation {history.generation(context.journal)}, {promoted} promoted, {len(rows)} proposals"
    return Group(Text(f"{head}, {hours:.2f} h, {spent:.2f} USD"), table)


def _lines(event: str, **facts: Any) -> None:
    if event == "round":
        names = ", ".join(slot.direction.name for slot in facts["slots"])
        ERR.print(f"round {facts['number']}: {names}", markup=False)
    elif event == "infra":
        ERR.print(f"{facts['job'].key}: tried again: {facts['reason']}", markup=False, soft_wrap=True)
    elif event == "done":
        result = facts["job"].result
        what = result.get("status") or "; ".join(result.get("reasons") or []) or "done"
        ERR.print(f"{facts['job'].key}: {what}", markup=False, soft_wrap=True)
