"""Reads what an agent printed: Claude Code's stream of JSON lines, or any other output."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Transcript:
    """What an agent says that it did; for the report only, caps are kept by the proxy and the jail.

    Attributes:
        tools: calls by tool's name.
        turns: turns of the conversation.
        usd: money that it counted itself; None when it says nothing.
        error: why it says that it ended, when that was an error.
    """

    tools: dict[str, int]
    turns: int = 0
    usd: float | None = None
    error: str = ""

    @property
    def calls(self) -> int:
        """Tool calls in all."""
        return sum(self.tools.values())


def read_transcript(log: str) -> Transcript:
    """Return the sums over all JSON lines of `log`; lines that are none are skipped."""
    tools: dict[str, int] = {}
    turns, usd, error = 0, None, ""
    for line in log.splitlines():
        row = _row(line)
        if row.get("type") in ("assistant", "AssistantMessage"):
            turns += 1
            for name in _tools(row):
                tools[name] = tools.get(name, 0) + 1
        if row.get("type") in ("result", "ResultMessage"):
            cost = row.get("total_cost_usd")
            usd = float(cost) if isinstance(cost, int | float) else None
            error = str(row.get("subtype") or "error")[:80] if row.get("is_error") else ""
    return Transcript(tools, turns, usd, error)


def _row(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _tools(row: dict[str, Any]) -> list[str]:
    message = row.get("message")
    content = (message if isinstance(message, dict) else row).get("content")
    blocks = content if isinstance(content, list) else []
    named = [b for b in blocks if isinstance(b, dict) and isinstance(b.get("name"), str)]
    return [str(b["name"])[:40] for b in named]
