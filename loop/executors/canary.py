"""The canary: a fixed piece of work, timed before each trial, that shows a host in another state than usual."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specpilot_sglang.eval import provenance
from specpilot_sglang.eval.ab.durable import write_json
from specpilot_sglang.eval.ab.host import host_class

_REPEATS, _SIZE = 15, 384


@dataclass(frozen=True)
class Canary:
    """What the canary saw.

    Attributes:
        host: host class.
        seconds: median time of the fixed work now.
        usual: median of what was seen on this host class before; the present one on the first time.
        load: one-minute load average for each usable core.
    """

    host: str
    seconds: float
    usual: float
    load: float

    @property
    def ratio(self) -> float:
        """How much slower than usual the host is; 1 is as usual."""
        return self.seconds / self.usual

    def quiet(self, most: float) -> bool:
        """Whether the host is in its usual state, within a factor of `most`."""
        return self.ratio <= most

    def to_json(self) -> dict[str, Any]:
        """Return the canary as JSON values."""
        return {"host": self.host, "seconds": self.seconds, "ratio": self.ratio, "load": self.load}


def canary(path: Path) -> Canary:
    """Time the fixed work and add it to the host class's history in `path`.

    Args:
        path: JSON file of times by host class.
    """
    host, seconds = host_class(), _time()
    history: dict[str, list[float]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows = history.get(host, [])
    usual = statistics.median(rows) if rows else seconds
    write_json(path, {**history, host: [*rows, seconds][-50:]})
    return Canary(host, seconds, usual, provenance.load_average() / max(1, provenance.usable_cores()))


def _time() -> float:
    matrix = np.random.default_rng(0).standard_normal((_SIZE, _SIZE))
    times = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        matrix @ matrix
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
