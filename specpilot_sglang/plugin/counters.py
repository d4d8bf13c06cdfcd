"""Hot-path hit counters of this process: proof that a mechanism really ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_hits: dict[str, int] = {}
_listeners: list[Callable[[str, int], Any]] = []


def declare(name: str) -> None:
    """Make `name` appear with zero hits before it is first reached."""
    _hits.setdefault(name, 0)


def hit(name: str, n: int = 1) -> None:
    """Count `n` passes through the code called `name`. Cheap enough for every decode step."""
    _hits[name] = _hits.get(name, 0) + n
    for listen in _listeners:
        listen(name, n)


def snapshot() -> dict[str, int]:
    """Return a copy of all counters."""
    return dict(_hits)


def listen(listener: Callable[[str, int], Any]) -> None:
    """Call `listener(name, n)` after every hit (metrics export)."""
    _listeners.append(listener)


def reset() -> None:
    """Forget all counters and listeners (tests)."""
    _hits.clear()
    _listeners.clear()
