"""What the journal says about the past: directions' records, candidates for agents to learn from, the incumbent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specpilot_sglang.loop.directions import Direction, Record
from specpilot_sglang.loop.gate.feedback import feedback
from specpilot_sglang.loop.journal import Job, JobState, Journal

#: Events that make another generation the incumbent.
_INCUMBENT = ("begin", "promoted", "rollback")


def generation(journal: Journal) -> int:
    """Return the number of the present incumbent's generation."""
    events = [event for kind in _INCUMBENT for event in journal.events(kind)]
    return int(max(events, key=lambda event: event.seq).data["generation"]) if events else 0


def newest(journal: Journal) -> int:
    """Return the highest generation that was ever made."""
    return max((int(event.data["generation"]) for event in journal.events("promoted")), default=0)


def slots(journal: Journal, before: int | None = None) -> list[dict[str, Any]]:
    """Return one row a proposal in order: jobs `propose`, `gate`, `trial`, and what became of it.

    Args:
        journal: the journal.
        before: only rounds below this one.
    """
    rows = []
    for job in journal.jobs("propose"):
        number = int(job.spec["round"])
        if before is not None and number >= before:
            continue
        gate = journal.job(gate_key(number, int(job.spec["slot"])))
        trial = journal.job(str(gate.result["trial"])) if gate and gate.result.get("trial") else None
        rows.append({"round": number, "slot": job.spec["slot"], "propose": job, "gate": gate, "trial": trial})
    return rows


def propose_key(number: int, slot: int) -> str:
    """Return the key of a proposal."""
    return f"propose:{number:04d}:{slot}"


def gate_key(number: int, slot: int) -> str:
    """Return the key of a proposal's gate."""
    return f"gate:{number:04d}:{slot}"


def status(row: Mapping[str, Any]) -> str:
    """Return in one word what became of a proposal."""
    trial, gate, propose = row["trial"], row["gate"], row["propose"]
    if trial is not None:
        return str(trial.result.get("status", trial.state.value))
    if gate is not None and gate.state is JobState.DONE:
        return "refused" if gate.result["patched"] else "nothing"
    return str(propose.state.value)


def records(journal: Journal, before: int | None = None) -> dict[str, Record]:
    """Return how each direction has done in the rounds below `before`."""
    found: dict[str, Record] = {}
    for row in slots(journal, before):
        name = str(row["propose"].spec["direction"])
        record = found.get(name, Record())
        what = status(row)
        won = what == "accepted"
        seconds = sum(float(j.result.get("seconds") or 0.0) for j in (row["propose"], row["trial"]) if j is not None)
        found[name] = replace(
            record,
            tries=record.tries + 1,
            accepted=record.accepted + won,
            since=0 if won else record.since + 1,
            seconds=record.seconds + seconds,
            # After a promotion there may be something left to try again.
            dry=what == "nothing" and not won,
        )
    return found


def for_agents(journal: Journal, before: int) -> list[dict[str, Any]]:
    """Return earlier candidates as agents may see them: rounded feedback, no reasons of the judge."""
    rows = []
    for row in slots(journal, before):
        gate: Job | None = row["gate"]
        if gate is None or not gate.result.get("patched"):
            continue
        trial: Job | None = row["trial"]
        gain = trial.result.get("log_gain") if trial is not None else None
        rows.append(
            {
                "direction": row["propose"].spec["direction"],
                "change": row["propose"].result.get("note", {}).get("change", ""),
                "values": gate.result["values"],
                "feedback": feedback(status(row), gain, gate.result["reasons"]),
            }
        )
    return rows


def explored(journal: Journal, before: int) -> list[Direction]:
    """Return directions that agents proposed in earlier rounds."""
    found: dict[str, Direction] = {}
    for job in journal.jobs("propose"):
        row = job.result.get("direction")
        if row and int(job.spec["round"]) < before:
            direction = Direction.model_validate(row)
            found.setdefault(direction.name, direction)
    return list(found.values())
