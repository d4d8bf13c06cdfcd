"""Hashes of everything that decides: the judge, the statistics, the load and forcing code, and the benchmark client.

They are taken when a candidate is frozen and compared again before each verdict. The benchmark client is compared
with the RECORD of the installed SGLang wheel as well, which no run of ours writes.
"""

from __future__ import annotations

import hashlib
import time
import types
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from specpilot_sglang.eval.ab import measure, rule
from specpilot_sglang.eval.load import client_source, process, turns
from specpilot_sglang.eval.load import run as load_run

#: Modules of the package that are pinned, as patterns.
PINNED = (
    *("loop/judge/**/*.py", "eval/ab/**/*.py", "eval/load/**/*.py", "eval/suites/**/*.py", "eval/*.py"),
    *("plugin/attestation.py", "plugin/counters.py", "plugin/route.py", "overlay/*.py", "errors.py"),
)
#: The clocks that take times, and functions that decide: a replaced one shows in where its code comes from.
_CLOCKS: dict[str, Callable[..., Any]] = {
    "time.monotonic": time.monotonic,
    "time.perf_counter": time.perf_counter,
    "time.time": time.time,
}


def take(root: Path | None = None) -> dict[str, str]:
    """Return the SHA-256 of every pinned file by its path inside the package, and of the client's files.

    Args:
        root: the package's folder; the installed one by default.
    """
    base = root or _package()
    found: dict[str, str] = {}
    for pattern in PINNED:
        for file in sorted(base.glob(pattern)):
            found[str(file.relative_to(base))] = hashlib.sha256(file.read_bytes()).hexdigest()
    return {**found, **client_source.client_problems()[0]}


def problems(pins: Mapping[str, str], root: Path | None = None) -> list[str]:
    """Return what is no longer as `pins` say, what the wheel's RECORD denies, and what was replaced in memory."""
    now = take(root)
    changed = [f"{name} was changed since the candidate was frozen" for name in pins if now.get(name) != pins[name]]
    added = [f"{name} was added since the candidate was frozen" for name in now if name not in pins]
    return [*sorted(changed), *sorted(added), *client_source.client_problems()[1], *replaced_in_memory()]


def replaced_in_memory() -> list[str]:
    """Return clocks and deciding functions of this process that are not the ones their files define."""
    reasons = []
    for name, known in _CLOCKS.items():
        current = getattr(time, name.partition(".")[2])
        if current is not known or not isinstance(current, types.BuiltinFunctionType):
            reasons.append(f"{name} of this process was replaced")
    deciding = {
        "eval.ab.rule.decide": (rule, "decide"),
        "eval.ab.measure.judge_speed": (measure, "judge_speed"),
        "eval.load.run.run_load": (load_run, "run_load"),
        "eval.load.run.run_pair": (load_run, "run_pair"),
        "eval.load.turns.run_in_turns": (turns, "run_in_turns"),
        "eval.load.process.run_client": (process, "run_client"),
    }
    for name, (module, attribute) in deciding.items():
        code = getattr(getattr(module, attribute), "__code__", None)
        if code is None or not module.__file__ or Path(code.co_filename).name != Path(module.__file__).name:
            reasons.append(f"{name} of this process was replaced")
    return reasons


def _package() -> Path:
    return Path(str(resources.files("specpilot_sglang") / "errors.py")).parent
