"""How many rows a request has in a verify pass: fewer, the more requests share the pass."""

from __future__ import annotations

from dataclasses import dataclass

#: Rows a tree may have on CUDA: graphs are captured a width, a smaller tree is padded up to it.
WIDTHS = (8, 16, 32, 64)
#: Rows of a whole verify pass on CUDA where the overlay names no `call_budget`. Up to one row tile of the matrix
#: products, 64, a pass takes as long as its weights take to be read; beyond it every row costs (docs/measured.md).
CALL_BUDGET = 64


@dataclass(frozen=True)
class WidthPolicy:
    """The widest tree for a number of requests.

    Attributes:
        widths: rows of a request to choose from, rising.
        call_budget: rows of all requests together, None for no bound. Where not even the smallest trees fit they are
            used all the same: a request is never left without one.
    """

    widths: tuple[int, ...]
    call_budget: int | None

    @classmethod
    def of(cls, budget: int, call_budget: int | None, cpu: bool) -> WidthPolicy:
        """Return the policy for trees of `budget` nodes; a CPU pays for every row, so its widest tree is not padded.

        Args:
            budget: nodes of a tree, the root included; at most 64 on a GPU.
            call_budget: the overlay's bound, None for the device's own: none on a CPU, `CALL_BUDGET` on a GPU.
            cpu: whether this is the CPU platform.
        """
        if cpu:
            return cls((*(n for n in WIDTHS if n < budget), budget), call_budget)
        widest = next(n for n in WIDTHS if n >= budget)
        return cls(tuple(n for n in WIDTHS if n <= widest), call_budget or CALL_BUDGET)

    def width(self, requests: int) -> int:
        """Rows each of `requests` requests has."""
        if self.call_budget is None:
            return self.widths[-1]
        return max((n for n in self.widths if n * requests <= self.call_budget), default=self.widths[0])

    def most_rows(self, requests: int) -> int:
        """Most rows a pass over up to `requests` requests has."""
        return max(n * self.width(n) for n in range(1, requests + 1))
