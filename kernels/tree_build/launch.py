"""Builds trees with one kernel launch, into buffers of the caller's if there are any."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from specpilot_sglang.kernels.tree_build.heap_kernel import best_first_kernel
from specpilot_sglang.kernels.tree_build.scores import LatticeScores, MarginalScores
from specpilot_sglang.kernels.tree_build.tree import Trees

#: Nodes a tree may have: the kernel packs node numbers, ranks and candidates into eight bits, masks into 64.
MAX_NODES = 64


@dataclass(frozen=True)
class LinkedTrees:
    """A batch of trees with their links, as `Trees.links` gives them.

    Attributes:
        trees: the trees.
        child, sibling: int64 [batch, nodes], first child and next sibling, -1 where there is none.
    """

    trees: Trees
    child: torch.Tensor
    sibling: torch.Tensor

    @classmethod
    def empty(cls, batch: int, nodes: int, device: torch.device | str) -> LinkedTrees:
        """Room for `batch` trees of `nodes` rows."""
        tokens, parents, depths, child, sibling = torch.zeros(5, batch, nodes, dtype=torch.int64, device=device)
        scores = torch.zeros(batch, nodes, dtype=torch.float32, device=device)
        sizes = torch.ones(batch, dtype=torch.int64, device=device)
        return cls(Trees(tokens, parents, depths, scores, sizes), child, sibling)

    def first(self, batch: int) -> LinkedTrees:
        """The first `batch` trees; views."""
        t = self.trees
        parts = (t.tokens[:batch], t.parents[:batch], t.depths[:batch], t.scores[:batch], t.sizes[:batch])
        return LinkedTrees(Trees(*parts), self.child[:batch], self.sibling[:batch])


def build_linked(
    edges: MarginalScores | LatticeScores,
    roots: torch.Tensor,
    budget: int,
    max_depth: int | None = None,
    budgets: torch.Tensor | None = None,
    out: LinkedTrees | None = None,
) -> LinkedTrees:
    """Build what `build.build` builds, with its links, in one launch (two sorts before it for a lattice).

    Equal scores may come in another order than `build.build`'s; the tree is then another one of the best.

    Args:
        edges: marginals with candidates in falling order, or a lattice.
        roots: int [batch], may be strided.
        budget: nodes a tree, the root included; at most 64.
        max_depth: tokens from the root to the deepest node; None allows the whole block.
        budgets: int64 [batch], fewer nodes for some requests, or None.
        out: contiguous buffers of `batch` trees and at least `budget` rows; rows past the budget become padding.

    Returns:
        `out`, or new buffers of `budget` rows.
    """
    batch, depth = edges.tokens.shape[:2]
    out = LinkedTrees.empty(batch, budget, roots.device) if out is None else out
    nodes = out.trees.nodes
    if not 1 <= budget <= nodes <= MAX_NODES:
        raise ValueError(f"a tree of {budget} nodes in {nodes} rows: the kernel builds 1 to {MAX_NODES}")
    candidates, logprobs, order = _tables(edges)
    limit = depth if max_depth is None else min(depth, max_depth)
    t = out.trees
    best_first_kernel[(batch,)](
        candidates, logprobs, order, roots, budgets,
        t.tokens, t.parents, t.depths, t.scores, t.sizes, out.child, out.sibling,
        limit, depth, budget, roots.stride(0),
        NODES=nodes, WIDTH=candidates.shape[-1], ROWS=1 if order is None else order.shape[2],
        SLOTS=triton.next_power_of_2(nodes), BUDGETS=budgets is not None, num_warps=1,
    )  # fmt: skip
    return out


def build_marginals(
    edges: MarginalScores,
    roots: torch.Tensor,
    budget: int,
    max_depth: int | None = None,
    budgets: torch.Tensor | None = None,
) -> tuple[Trees, torch.Tensor, torch.Tensor]:
    """`build_linked` as (trees, first children, next siblings)."""
    made = build_linked(edges, roots, budget, max_depth, budgets)
    return made.trees, made.child, made.sibling


def _tables(edges: MarginalScores | LatticeScores) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Tokens and log probabilities in falling order, and a lattice's candidates in that order."""
    if isinstance(edges, MarginalScores):
        return edges.tokens.contiguous(), edges.logprobs.float().contiguous(), None
    logprobs, order = edges.logprobs.sort(dim=-1, descending=True, stable=True)
    tokens = edges.tokens[:, :, None, :].expand_as(order).gather(-1, order)
    return tokens.contiguous(), logprobs.contiguous(), order.int().contiguous()
