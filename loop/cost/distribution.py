"""How many drafted tokens a verify step accepts: the distribution, its mean, and what a smaller block makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specpilot_sglang.errors import SpecPilotError


@dataclass(frozen=True)
class AcceptDistribution:
    """Shares of verify steps that accepted 0, 1, 2, ... drafted tokens.

    Attributes:
        shares: they sum to 1; one entry more than the most that a step can accept.
    """

    shares: tuple[float, ...]

    @classmethod
    def of_counts(cls, counts: Sequence[float]) -> AcceptDistribution:
        """Return the distribution of counts by number of accepted drafts.

        Raises:
            SpecPilotError: no counts, or a negative one.
        """
        total = sum(counts)
        if not counts or total <= 0 or min(counts) < 0:
            fix = "give how many steps accepted 0, 1, 2, ... drafts"
            raise SpecPilotError("an accept distribution needs counts that are not negative", fix=fix)
        return cls(tuple(c / total for c in counts))

    @classmethod
    def of_length(cls, length: float, block: int) -> AcceptDistribution:
        """Return the distribution with mean accept length `length` in which every draft has the same chance.

        For when only an accept length is known; real drafters are better on the first drafts than on the last.

        Args:
            length: tokens a verify step, bonus included.
            block: tokens of a block, the last committed one included.

        Raises:
            SpecPilotError: `length` is not between 1 and `block`.
        """
        if not 1.0 <= length <= block:
            raise SpecPilotError(f"accept length {length} with blocks of {block}", fix="give 1 <= length <= block")
        low, high = 0.0, 1.0
        for _ in range(60):  # bisection: the mean grows with the chance
            chance = (low + high) / 2
            low, high = (chance, high) if _geometric(chance, block).length < length else (low, chance)
        return _geometric((low + high) / 2, block)

    @property
    def length(self) -> float:
        """Accept length: tokens a verify step, bonus included."""
        return 1.0 + sum(i * share for i, share in enumerate(self.shares))

    def truncated(self, block: int) -> AcceptDistribution:
        """Return the distribution for a smaller block, if its drafts are the first ones of the larger block.

        A parallel drafter sees fewer mask tokens then, so its drafts may differ a little; this leaves that out.
        """
        last = max(0, min(block - 1, len(self.shares) - 1))
        return AcceptDistribution((*self.shares[:last], sum(self.shares[last:])))


def _geometric(chance: float, block: int) -> AcceptDistribution:
    shares = [chance**i * (1 - chance) for i in range(block - 1)]
    return AcceptDistribution((*shares, chance ** (block - 1)))
