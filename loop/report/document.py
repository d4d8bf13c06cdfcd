"""The report's content, from journal and memory alone."""

from __future__ import annotations

import math
from typing import Any

from specpilot_sglang.loop.controller import history
from specpilot_sglang.loop.controller.state import State
from specpilot_sglang.loop.journal import Journal
from specpilot_sglang.loop.memory import Memory

#: Events that a reader of the report wants to see; all others are in the journal.
_NOTABLE = (
    "gate_refused",
    "note_refused",
    "cheat",
    "incomplete",
    "disagreement",
    "orphans_ended",
    "promoted",
    "rollback",
    "finished",
)


def document(state: State, journal: Journal, memory: Memory) -> dict[str, Any]:
    """Return the report as JSON values."""
    begin = journal.events("begin")
    rows = [_row(row) for row in history.slots(journal)]
    events = sorted((e for kind in _NOTABLE for e in journal.events(kind)), key=lambda e: e.seq)
    return {
        "overlay": begin[0].data["overlay"] if begin else "",
        "settings": begin[0].data["settings"] if begin else {},
        "began": begin[0].time if begin else None,
        "generation": history.generation(journal),
        "published": str(state.published),
        "statuses": _statuses(rows),
        "candidates": rows,
        "tree": _tree(journal, rows),
        "spend": _spend(rows),
        "infra_retries": sum(job.retries for job in journal.jobs()),
        "learnt": [entry.model_dump(mode="json") for entry, _ in memory.all() if entry.origin == "loop"],
        "events": [{"seq": e.seq, "kind": e.kind, "job": e.job, "data": dict(e.data)} for e in events],
        "check": journal.check(),
    }


def _row(row: dict[str, Any]) -> dict[str, Any]:
    propose, gate, trial = row["propose"], row["gate"], row["trial"]
    figures = trial.result if trial is not None else {}
    reasons = figures.get("reasons") or (gate.result.get("reasons") if gate is not None else []) or []
    return {
        **{"round": row["round"], "slot": row["slot"], "direction": propose.spec["direction"]},
        **{"incumbent": propose.spec["incumbent"], "change": propose.result.get("note", {}).get("change", "")},
        **{"status": history.status(row), "reasons": list(reasons)},
        **{name: _gain(figures.get(key)) for name, key in _GAINS},
        "sha256": gate.result.get("sha256", "") if gate is not None else "",
        "trial": trial.key if trial is not None else "",
        "seconds": sum(float(j.result.get("seconds") or 0.0) for j in (propose, trial) if j is not None),
        **{name: propose.result.get(name) for name in ("calls", "tokens", "usd", "tools")},
    }


_GAINS = (("gain", "log_gain"), ("confirmed", "confirmed"), ("lower", "lower"))


def _gain(log_ratio: float | None) -> float | None:
    return None if log_ratio is None else math.expm1(log_ratio)


def _statuses(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {what: sum(r["status"] == what for r in rows) for what in sorted({r["status"] for r in rows})}


def _spend(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {name: sum(float(r[name] or 0.0) for r in rows) for name in ("seconds", "calls", "tokens", "usd", "tools")}


def _tree(journal: Journal, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each generation with the candidates that were tried against it."""
    made = [{"generation": 0, "sha256": "", "trial": ""}]
    made += [dict(event.data) for event in journal.events("promoted")]
    started = {int(e.data["round"]): int(e.data["generation"]) for e in journal.events("round")}
    return [
        {**node, "candidates": [r for r in rows if started.get(int(r["round"])) == node["generation"]]} for node in made
    ]
