"""Freezing a candidate: from here on neither it nor the judge may change, and only now are sealed prompts drawn."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.durable import write_json
from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.loop.judge import pins
from specpilot_sglang.overlay import load_overlay


@dataclass(frozen=True)
class Frozen:
    """A candidate as it was when it was handed in.

    Attributes:
        incumbent: the arm it is compared with.
        candidate: the arm under test.
        overlay_sha256: hash of the candidate's overlay; empty without one.
        pins: hashes of judge and client, see `pins.take`.
        frozen_at: seconds since the epoch.
    """

    incumbent: Arm
    candidate: Arm
    overlay_sha256: str
    pins: Mapping[str, str]
    frozen_at: float

    @property
    def sha256(self) -> str:
        """Hash over all of it; sealed prompts name it."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the frozen candidate as JSON values."""
        arms = {"incumbent": self.incumbent.to_json(), "candidate": self.candidate.to_json()}
        rest = {"overlay_sha256": self.overlay_sha256, "pins": dict(self.pins), "frozen_at": self.frozen_at}
        return {**arms, **rest}

    def problems(self) -> list[str]:
        """Return what was changed since: the overlay's files, the judge, the benchmark client."""
        found = pins.problems(self.pins)
        if self.candidate.overlay is not None:
            try:
                now = load_overlay(self.candidate.overlay).sha256
            except SpecPilotError as exc:
                return [*found, f"the frozen overlay cannot be read any more: {exc.line()}"]
            if now != self.overlay_sha256:
                found.append("the overlay was changed after it was frozen")
        return found


def freeze(incumbent: Arm, candidate: Arm, folder: Path) -> Frozen:
    """Freeze a candidate into `folder`, or return the one frozen there before.

    Raises:
        SpecPilotError: another candidate is frozen there, or the overlay cannot be read.
    """
    path = folder / "frozen.json"
    if path.exists():
        former = load_frozen(folder)
        if (former.incumbent, former.candidate) != (incumbent, candidate):
            raise SpecPilotError("another candidate is frozen here", where=path, fix="choose another folder")
        return former
    sha256 = load_overlay(candidate.overlay).sha256 if candidate.overlay is not None else ""
    frozen = Frozen(incumbent, candidate, sha256, pins.take(), time.time())
    write_json(path, frozen.to_json())
    return frozen


def load_frozen(folder: Path) -> Frozen:
    """Read what `freeze` wrote; raise `SpecPilotError` when it is missing or something else."""
    path = folder / "frozen.json"
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        arms = Arm.from_json(row["incumbent"]), Arm.from_json(row["candidate"])
        return Frozen(*arms, str(row["overlay_sha256"]), dict(row["pins"]), float(row["frozen_at"]))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise SpecPilotError(f"no frozen candidate ({exc!r})", where=path, fix="freeze it first") from exc
