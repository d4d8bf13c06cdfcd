"""The cost table of one deployment: measured step times, work and rates; JSON in and out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.files import write_whole
from specpilot_sglang.loop.cost.distribution import AcceptDistribution

SCHEMA = 2
KIND = "specpilot cost table"


@dataclass(frozen=True)
class StepTime:
    """Mean seconds of one step at `batch` requests.

    Attributes:
        batch: running requests.
        width: tokens a request and pass; 1 for plain decoding.
        steps: steps averaged; 0 when the figure comes from elsewhere.
        step_s: from the start of one step to the start of the next.
        draft_s: drafter's passes, its head and its keys and values; None for plain decoding or when unknown.
        verify_s: the target's pass; None when unknown.
    """

    batch: int
    width: int
    steps: int
    step_s: float
    draft_s: float | None = None
    verify_s: float | None = None

    @property
    def overhead_s(self) -> float | None:
        """Everything of a step outside the models' passes; None when they are unknown."""
        if self.verify_s is None:
            return None
        return self.step_s - self.verify_s - (self.draft_s or 0.0)


@dataclass(frozen=True)
class Prefill:
    """Mean seconds of one prefill pass over about `tokens` tokens; `draft_s` more where a drafter runs."""

    tokens: int
    passes: int
    seconds: float
    draft_s: float = 0.0


@dataclass(frozen=True)
class Work:
    """What one pass must at least move and compute.

    Attributes:
        target_bytes: weights that a target pass reads, head included, embedding rows left out.
        draft_bytes: weights that a draft pass reads, the target's head included.
        target_flops: a token of a target pass.
        draft_flops: a token of a draft pass.
    """

    target_bytes: float
    draft_bytes: float
    target_flops: float
    draft_flops: float


@dataclass(frozen=True)
class Rates:
    """Measured on the machine: bytes a second of a copy (read and write both counted), FLOP a second of a GEMM."""

    bytes_s: float
    flops_s: float


@dataclass(frozen=True)
class CostTable:
    """Everything that `predict` and the list of gaps need.

    Attributes:
        name: deployment.
        block: the drafter's own block.
        ar: plain decoding, by batch.
        spec: speculative steps, by batch and width.
        prefill: prefill passes.
        request_s: seconds a request spends outside the model's steps (HTTP, tokenizer, scheduling).
        accept: suite -> draft block -> counts of steps by accepted drafts.
        work: None when unknown.
        rates: None when unknown.
        labels: what a reader must know: simulated acceptance, random or dequantised weights, prefill included.
        provenance: see `eval.provenance`.
    """

    name: str
    block: int
    ar: tuple[StepTime, ...]
    spec: tuple[StepTime, ...]
    prefill: tuple[Prefill, ...] = ()
    request_s: float = 0.0
    accept: Mapping[str, Mapping[int, tuple[int, ...]]] = field(default_factory=dict)
    work: Work | None = None
    rates: Rates | None = None
    labels: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def measured_accept(self, suite: str, block: int) -> bool:
        """Return whether the accept distribution of `suite` was measured at this draft block."""
        return block in self.accept.get(suite, {})

    def distribution(self, suite: str, block: int | None = None) -> AcceptDistribution:
        """Return the accept distribution of `suite` at a draft block, the drafter's own by default.

        Where it was not measured it is that of the next larger measured block, cut. That is optimistic: a drafter
        that was trained with one block drafts worse with a smaller one, SmolLM2's by a quarter (docs/measured.md).

        Raises:
            SpecPilotError: nothing was measured for the suite at this block or a larger one.
        """
        wanted, known = block or self.block, self.accept.get(suite, {})
        larger = sorted(b for b in known if b >= wanted)
        if not larger:
            places = ", ".join(f"{s} at {b}" for s, row in self.accept.items() for b in row) or "none"
            fix = f"measured: {places}; or give the counts"
            raise SpecPilotError(f"no accept distribution of {suite!r} at block {wanted}", fix=fix)
        return AcceptDistribution.of_counts(known[larger[0]]).truncated(wanted)

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        return {"kind": KIND, "schema": SCHEMA, **asdict(self)}

    def save(self, path: Path) -> None:
        """Write the table to `path` in one step."""
        write_whole(path, json.dumps(self.to_json(), indent=1, default=str) + "\n", fix="choose --out")


def load_table(path: Path) -> CostTable:
    """Read a cost table; raise `SpecPilotError` naming file and defect when it is none."""
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        if row.get("kind") != KIND:
            raise ValueError("it is no cost table")
        if row.get("schema") != SCHEMA:
            raise ValueError(f"schema {row.get('schema')}, this version reads {SCHEMA}")
        return _from_json(row)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as exc:
        fix = "measure one with `specpilot cost measure`"
        raise SpecPilotError(f"cannot read the cost table ({exc})", where=path, fix=fix) from exc


def find_table(name: str, base: Path = Path()) -> CostTable:
    """Read the table in the file `name`, relative to `base`, or the packaged table of that name.

    Raises:
        SpecPilotError: there is none, or it cannot be read.
    """
    if name.endswith(".json") or "/" in name:
        return load_table(base / Path(name).expanduser())
    folder = Path(str(resources.files("specpilot_sglang.loop.cost") / "tables"))
    known = sorted(p.stem for p in folder.glob("*.json"))
    if name not in known:
        fix = f"use one of {', '.join(known)}, or a .json file"
        raise SpecPilotError(f"no packaged cost table is called {name!r}", fix=fix)
    return load_table(folder / f"{name}.json")


def _from_json(row: Mapping[str, Any]) -> CostTable:
    plain = {f.name: row[f.name] for f in fields(CostTable) if f.name in row}
    lists: dict[str, Any] = {
        "ar": tuple(StepTime(**r) for r in row["ar"]),
        "spec": tuple(StepTime(**r) for r in row["spec"]),
        "prefill": tuple(Prefill(**r) for r in row.get("prefill", ())),
        "accept": {
            suite: {int(block): tuple(map(int, counts)) for block, counts in by_block.items()}
            for suite, by_block in row.get("accept", {}).items()
        },
        "work": Work(**row["work"]) if row.get("work") else None,
        "rates": Rates(**row["rates"]) if row.get("rates") else None,
        "labels": tuple(row.get("labels", ())),
    }
    table = CostTable(**{**plain, **lists})
    if not table.ar or not table.spec:
        raise ValueError("it has no step times")
    return table
