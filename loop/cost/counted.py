"""Reads the timing counters of a server back into step times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.cost.table import Prefill, StepTime
from specpilot_sglang.loop.cost.timings import PREFIX

#: Fewer steps at a batch size say nothing.
MIN_STEPS = 8

Counts = Mapping[str, int]


def hits_of(attestation: Mapping[str, Any] | None) -> dict[str, int]:
    """Return rank 0's counters; raise `SpecPilotError` when the server did not time anything."""
    ranks = (attestation or {}).get("ranks") or [{}]
    hits = {str(k): int(v) for k, v in (ranks[0].get("hits") or {}).items()}
    if not any(name.startswith(f"{PREFIX}.") for name in hits):
        raise SpecPilotError("the server timed no pass", fix="see its log: the timing overlay was not used")
    return hits


def step_times(hits: Counts) -> list[StepTime]:
    """Return one entry for each batch and width with enough steps, smallest first."""
    found = []
    for place in _places(hits, "step"):
        batch, width = (int(part) for part in place.split("x"))
        steps = hits.get(f"{PREFIX}.step.{place}.n", 0)
        if steps < MIN_STEPS:
            continue
        verify = _mean(hits, f"verify.{place}", f"verify.{place}")
        # A step has several parts of drafting, each counted; their sum belongs to one verify pass.
        draft = _mean(hits, f"draft.{place}", f"verify.{place}")
        plain = _mean(hits, f"decode.{place}", f"decode.{place}")
        step = _mean(hits, f"step.{place}", f"step.{place}")
        assert step is not None
        found.append(StepTime(batch, width, steps, step, draft, plain if verify is None else verify))
    return sorted(found, key=lambda p: (p.batch, p.width))


def prefills(hits: Counts) -> list[Prefill]:
    """Return mean seconds of prefill passes by their number of tokens, smallest first."""
    found = []
    for tokens in sorted(_places(hits, "prefill"), key=int):
        name = f"prefill.{tokens}"
        seconds, draft = _mean(hits, name, name), _mean(hits, f"prefill_draft.{tokens}", name)
        if seconds is not None:
            passes = hits[f"{PREFIX}.{name}.n"]
            found.append(Prefill(int(tokens), passes, seconds, draft or 0.0))
    return found


def difference(after: Counts, before: Counts) -> dict[str, int]:
    """Return how far every counter grew."""
    grown: dict[str, int] = defaultdict(int)
    for name, value in after.items():
        grown[name] = value - before.get(name, 0)
    return dict(grown)


def total(first: Counts, second: Counts) -> dict[str, int]:
    """Return the sum of two sets of counters."""
    return {name: first.get(name, 0) + second.get(name, 0) for name in (*first, *second)}


def _places(hits: Counts, phase: str) -> list[str]:
    start = f"{PREFIX}.{phase}."
    return [
        name.removeprefix(start).removesuffix(".n") for name in hits if name.startswith(start) and name[-2:] == ".n"
    ]


def _mean(hits: Counts, total: str, per: str) -> float | None:
    count = hits.get(f"{PREFIX}.{per}.n", 0)
    microseconds = hits.get(f"{PREFIX}.{total}.us")
    return None if not count or microseconds is None else 1e-6 * microseconds / count
