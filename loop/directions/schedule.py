"""Who is sent where: expected gain over cost, and directions that bring nothing are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specpilot_sglang.loop.directions.direction import Direction

#: Tries without a promotion after which a direction is dead.
PATIENCE = 6


@dataclass(frozen=True)
class Record:
    """How a direction has done so far.

    Attributes:
        tries: candidates that were judged, refused by the gate, or not proposed at all.
        accepted: candidates that the judge accepted.
        since: tries since the last acceptance.
        seconds: time that agents and servers spent on it.
        dry: whether an agent said that nothing is left to try.
    """

    tries: int = 0
    accepted: int = 0
    since: int = 0
    seconds: float = 0.0
    dry: bool = False

    @property
    def chance(self) -> float:
        """Chance that the next try is accepted: Laplace's rule on what happened."""
        return (self.accepted + 1) / (self.tries + 2)


def dead(record: Record) -> bool:
    """Whether a direction is given up."""
    return record.dry or record.since >= PATIENCE


def choose(directions: Sequence[Direction], records: Mapping[str, Record], count: int) -> list[Direction]:
    """Return up to `count` live directions for the next round, best first, each at most once.

    The value of a direction is its possible gain times its chance, over what a try there has cost on average compared
    with all directions.
    """
    live = [d for d in directions if not dead(records.get(d.name, Record()))]
    spent = [r.seconds / r.tries for r in records.values() if r.tries and r.seconds > 0]
    usual = sum(spent) / len(spent) if spent else 1.0

    def value(direction: Direction) -> float:
        record = records.get(direction.name, Record())
        cost = record.seconds / record.tries if record.tries and record.seconds > 0 else usual
        return direction.share * record.chance / (cost / usual)

    return sorted(live, key=lambda d: (-value(d), d.name))[:count]
