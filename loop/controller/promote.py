"""Promotion, rollback, and what is written to the memory: by the judge's verdicts alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval import provenance
from specpilot_sglang.loop.controller import history, incumbent
from specpilot_sglang.loop.controller.context import Context
from specpilot_sglang.loop.controller.propose import Slot
from specpilot_sglang.loop.journal import Job
from specpilot_sglang.loop.memory import Entry
from specpilot_sglang.overlay import LoadedOverlay


def promote_best(context: Context, number: int, trials: Sequence[Job], base: LoadedOverlay) -> int | None:
    """Make the accepted candidate with the highest lower bound the incumbent; return its generation, None without one.

    Every step can be repeated: a generation's folder is made once, and the journal's event is what counts.
    """
    accepted = [job for job in trials if job.result.get("accepted")]
    if not accepted:
        return None
    best = max(accepted, key=lambda job: (job.result.get("lower") or 0.0, job.key))
    key = f"promote:{number:04d}"
    context.journal.enqueue(key, "promote", {"trial": best.key, "parent": base.sha256})

    def work(job: Job) -> dict[str, Any]:
        made = history.newest(context.journal) + 1
        source = context.state.candidate(str(best.spec["gate"])) / base.overlay.name
        loaded = incumbent.make_generation(context.state, made, source, _evidence(context, best, base, made))
        return {"generation": made, "sha256": loaded.sha256}

    result = context.run(key, work, ttl_s=600.0).result
    made = int(result["generation"])
    if not any(event.data["generation"] == made for event in context.journal.events("promoted")):
        context.journal.note("promoted", key, generation=made, trial=best.key, sha256=result["sha256"])
    incumbent.publish(context.state, made)
    return made


def roll_back(context: Context, to: int | None) -> int:
    """Make an earlier generation the incumbent again and return its number.

    Args:
        context: the controller.
        to: its number; the one before the present one by default.

    Raises:
        SpecPilotError: there is no such generation, or its files are not those that were judged.
    """
    now = history.generation(context.journal)
    target = now - 1 if to is None else to
    if target < 0 or target == now:
        raise SpecPilotError(f"generation {now} is the incumbent", fix="give --to with another one")
    loaded = incumbent.load_generation(context.state, target)
    if target > 0 and (wrong := incumbent.problems(context.state, loaded.folder)):
        raise SpecPilotError(wrong[0], where=loaded.folder, fix="choose another generation")
    context.journal.note("rollback", generation=target, former=now)
    incumbent.publish(context.state, target)
    return target


def remember(context: Context, slots: Sequence[Slot], base: LoadedOverlay) -> None:
    """Write what came of this round's proposals to the memory; writing it twice is writing it once."""
    wanted = {(slot.round, slot.number): slot for slot in slots}
    for row in history.slots(context.journal):
        slot = wanted.get((row["round"], row["slot"]))
        if slot is not None and row["gate"] is not None and row["gate"].result.get("patched"):
            context.memory.add(_entry(row, slot, base))


def _entry(row: dict[str, Any], slot: Slot, base: LoadedOverlay) -> Entry:
    note, trial = row["propose"].result.get("note", {}), row["trial"]
    predicted = note.get("predicted_gain_percent")
    figures = trial.result if trial is not None else {}
    reasons = figures.get("reasons") or row["gate"].result["reasons"]
    what = history.status(row)
    return Entry(
        deployment=base.overlay.name,
        mechanism=slot.direction.name,
        hypothesis=str(note.get("hypothesis") or slot.direction.why)[:600],
        change=str(note.get("change") or row["gate"].result["values"])[:600],
        predicted=None if predicted is None else predicted / 100,
        measured=_share(figures.get("log_gain")),
        lower=_share(figures.get("lower")),
        verdict=what,
        # Agents read this: the judge's reasons may name sealed prompts, a gate's are about the agent's own text.
        reason="" if trial is not None else "; ".join(reasons)[:600],
        scope=f"incumbent {base.sha256[:12]}, host {figures.get('host', '')}"[:300],
    )


def _evidence(context: Context, trial: Job, base: LoadedOverlay, generation: int) -> dict[str, Any]:
    figures = {name: trial.result.get(name) for name in ("log_gain", "confirmed", "lower", "blocks", "host")}
    return {
        "format": 1,
        "overlay": base.overlay.name,
        "generation": generation,
        "candidate_sha256": trial.spec["candidate"],
        "parent_sha256": base.sha256,
        "trial": trial.key,
        "verdict": trial.result["status"],
        "gain": {**figures, "unit": "natural logarithm of candidate over incumbent, output tokens a second"},
        "settings": context.settings.model_dump(mode="json", include={"load", "rule", "dtype", "server_args", "seed"}),
        "provenance": provenance.collect(None, seed=context.settings.seed),
    }


def _share(log_ratio: float | None) -> float | None:
    return None if log_ratio is None else round(math.expm1(log_ratio), 5)
