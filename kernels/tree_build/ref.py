"""Oracle of the tree builder: a heap over prefixes, one request at a time (Ringel and Romano, arXiv 2604.12989)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

Path = tuple[int, ...]
#: Children of a path: (candidate rank, log probability), best first.
Children = Callable[[Path], Sequence[tuple[int, float]]]


def best_first(children: Children, budget: int, max_depth: int) -> list[tuple[Path, float]]:
    """Pop the best paths until `budget` nodes (the root, the empty path, included) are in the tree.

    Popping a path pushes its first child and its next sibling, the two that may follow it.

    Args:
        children: see `Children`; log probabilities are at most 0.
        budget: nodes of the tree.
        max_depth: longest path.

    Returns:
        (path, score) in the order of popping. Paths are tuples of candidate ranks.
    """
    tree: list[tuple[Path, float]] = [((), 0.0)]
    heap: list[tuple[float, int, Path, int, float]] = []

    def push(parent: Path, which: int, base: float) -> None:
        options = children(parent) if len(parent) < max_depth else ()
        if which < len(options):
            rank, logprob = options[which]
            heapq.heappush(heap, (-(base + logprob), len(parent) + 1, (*parent, rank), which, base))

    push((), 0, 0.0)
    while heap and len(tree) < budget:
        cost, _, path, which, base = heapq.heappop(heap)
        tree.append((path, -cost))
        push(path, 0, -cost)
        push(path[:-1], which + 1, base)
    return tree
