"""How many rows a request has in a verify pass: fewer, the more requests share the pass."""

from __future__ import annotations

from dataclasses import dataclass

#: Rows a tree may have on CUDA: graphs are captured a width, a smaller tree is padded up to it.
WIDTHS = (8, 16, 32, 64)
#: Rows that requests which share a verify pass may have beyond the smallest tree's, all together, on CUDA where the
#: overlay names no `call_budget`: 2 to 4 requests have 16 rows each then, more have 8, as many as a chain. Measured, a
#: pass with so many more rows takes at most 5 % longer than a chain's (docs/measured.md).
CALL_BUDGET = 32


@dataclass(frozen=True)
class WidthPolicy:
    """The widest tree for a number of requests.

    Attributes:
        widths: rows of a request to choose from, rising.
        call_budget: rows of all requests together beyond the smallest width's, None for no bound; a request alone is
            not bound by it.
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
        return cls(tuple(n for n in WIDTHS if n <= widest), CALL_BUDGET if call_budget is None else call_budget)

    def width(self, requests: int) -> int:
        """Rows each of `requests` requests has."""
        if self.call_budget is None or requests == 1:
            return self.widths[-1]
        least = self.widths[0]
        return max(n for n in self.widths if (n - least) * requests <= self.call_budget)

    def most_rows(self, requests: int) -> int:
        """Most rows a pass over up to `requests` requests has."""
        return max(n * self.width(n) for n in range(1, requests + 1))
