"""Hot-path hit counters of this process: proof that a mechanism really ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_hits: dict[str, int] = {}
_proofs: set[str] = set()
_listeners: list[Callable[[str, int], Any]] = []


def declare(name: str, *, proof: bool = True) -> None:
    """Make `name` appear with zero hits before it is first reached.

    Args:
        name: counter.
        proof: whether every load must make it grow, or the mechanism did not run; false for what depends on the
            load or the machine, such as batches of one width or replays of CUDA graphs.
    """
    _hits.setdefault(name, 0)
    if proof:
        _proofs.add(name)


def hit(name: str, n: int = 1) -> None:
    """Count `n` passes through the code called `name`. Cheap enough for every decode step."""
    _hits[name] = _hits.get(name, 0) + n
    for listen in _listeners:
        listen(name, n)


def snapshot() -> dict[str, int]:
    """Return a copy of all counters."""
    return dict(_hits)


def proofs() -> list[str]:
    """Return the counters that every load must make grow, sorted."""
    return sorted(_proofs)


def listen(listener: Callable[[str, int], Any]) -> None:
    """Call `listener(name, n)` after every hit (metrics export)."""
    _listeners.append(listener)


def reset() -> None:
    """Forget all counters and listeners (tests)."""
    _hits.clear()
    _proofs.clear()
    _listeners.clear()
