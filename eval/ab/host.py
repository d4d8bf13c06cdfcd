"""Host classes, and where the A/A noise of each is kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from specpilot_sglang.assets.cache import cache_dir
from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval import provenance
from specpilot_sglang.eval.ab.durable import write_json
from specpilot_sglang.eval.ab.noise import Noise
from specpilot_sglang.eval.load.run import Workload

FORMAT = 1


def host_class() -> str:
    """Return what hosts of equal noise have in common: GPU model and count, or processor and usable cores."""
    gpus = provenance.gpu_names()
    if gpus:
        return f"{len(gpus)} x {gpus[0]}"
    return f"{provenance.cpu_name()}, {provenance.usable_cores()} cores"


def regime(workload: Workload, together: bool = False) -> str:
    """Return in words what a workload asks of a server and how; noise is kept apart by it."""
    end = "end token ignored" if workload.ignore_eos else "end token honoured"
    heat = "greedy" if workload.temperature == 0 else f"temperature {workload.temperature:g}"
    count, tokens = len(workload.items), workload.max_new_tokens
    how = ", both servers up" if together else ""
    return f"{count} requests x {tokens} tokens, {workload.concurrency} at a time, {heat}, {end}{how}"


def noise_file(host: str, folder: Path | None = None) -> Path:
    """Return the file that holds the A/A measurements of a host class."""
    slug = re.sub(r"[^a-z0-9]+", "-", host.lower()).strip("-")
    return (folder or cache_dir() / "noise") / f"{slug}.json"


def store(noise: Noise, provenance_: dict[str, Any], folder: Path | None = None) -> Path:
    """Add an A/A to its host class's file and return the file."""
    path = noise_file(noise.host, folder)
    rows = _rows(path)
    write_json(path, {"format": FORMAT, "host": noise.host, "measurements": [*rows, _row(noise, provenance_)]})
    return path


def stored_noise(host: str, regime_: str, folder: Path | None = None) -> Noise:
    """Return all A/A blocks of a host class under one regime, pooled.

    Raises:
        SpecPilotError: none was measured, or the file is damaged.
    """
    path = noise_file(host, folder)
    found = [Noise.from_json(row) for row in _rows(path) if row.get("regime") == regime_]
    if not found:
        raise SpecPilotError(
            f"no A/A noise is known for this host under {regime_!r}",
            where=path,
            fix="measure it with `specpilot aa` under the same settings, or give --noise FILE",
        )
    names = {name for noise in found for name in noise.latencies}
    pooled = {name: tuple(v for noise in found for v in noise.latencies.get(name, ())) for name in names}
    return Noise(tuple(v for noise in found for v in noise.log_ratios), pooled, host, regime_)


def _row(noise: Noise, provenance_: dict[str, Any]) -> dict[str, Any]:
    return {**noise.to_json(), "provenance": provenance_}


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']}")
        return list(value["measurements"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise SpecPilotError(
            f"not a noise file ({exc!r})", where=path, fix="move it away and run `specpilot aa`"
        ) from exc
