"""Hashes of the controller's own code, fixed when the loop begins and compared before each verdict."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.judge import pins as judge_pins

#: What decides, beside what the judge pins itself.
_OWN = ("loop/controller/*.py", "loop/gate/*.py", "loop/jail/*.py", "loop/journal/*.py", "loop/executors/*.py")


class ControllerChangedError(SpecPilotError):
    """The code that decides is not the code that the loop began with."""


def take(root: Path | None = None) -> dict[str, str]:
    """Return the SHA-256 of every file that decides, by its path in the package."""
    base = root or Path(str(resources.files("specpilot_sglang") / "errors.py")).parent
    own = {
        str(file.relative_to(base)): hashlib.sha256(file.read_bytes()).hexdigest()
        for pattern in _OWN
        for file in sorted(base.glob(pattern))
    }
    return {**own, **judge_pins.take(root)}


def check(pins: Mapping[str, str], root: Path | None = None) -> None:
    """Raise `ControllerChangedError` when a file was changed, added or removed, or a clock was replaced."""
    now = take(root)
    names = sorted(name for name in {*now, *pins} if now.get(name) != pins.get(name))
    reasons = [f"{name} was changed" for name in names] + judge_pins.replaced_in_memory()
    if reasons:
        what = f"the code that decides is not the one this loop began with: {'; '.join(reasons[:3])}"
        raise ControllerChangedError(what, fix="restore it, or begin a new loop with another --state")
