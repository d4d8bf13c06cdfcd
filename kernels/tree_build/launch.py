"""Builds trees of marginals with one kernel launch."""

from __future__ import annotations

import torch
import triton

from specpilot_sglang.kernels.tree_build.heap_kernel import best_first_kernel
from specpilot_sglang.kernels.tree_build.scores import MarginalScores
from specpilot_sglang.kernels.tree_build.tree import Trees


def build_marginals(
    edges: MarginalScores,
    roots: torch.Tensor,
    budget: int,
    max_depth: int | None = None,
    budgets: torch.Tensor | None = None,
) -> tuple[Trees, torch.Tensor, torch.Tensor]:
    """Build what `build.build` builds, with its links, in one launch.

    Equal scores may come in another order than `build.build`'s; the tree is then another one of the best.

    Args:
        edges: candidates in falling order, int64 and float32 [batch, depth, candidates].
        roots: int64 [batch].
        budget: nodes a tree, the root included.
        max_depth: tokens from the root to the deepest node; None allows the whole block.
        budgets: int64 [batch] or None.

    Returns:
        (trees, first children, next siblings), the latter as `Trees.links` gives them.
    """
    batch, depth, width = edges.tokens.shape
    limit = depth if max_depth is None else min(depth, max_depth)

    def empty(dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(batch, budget, dtype=dtype, device=roots.device)

    tokens, parents, depths, child, sibling = (empty(torch.int64) for _ in range(5))
    scores, sizes = empty(torch.float32), torch.empty(batch, dtype=torch.int64, device=roots.device)
    best_first_kernel[(batch,)](
        edges.tokens.contiguous(), edges.logprobs.float().contiguous(), roots, budgets,
        tokens, parents, depths, scores, sizes, child, sibling, limit, depth,
        BUDGET=budget, WIDTH=width, SLOTS=triton.next_power_of_2(budget), BUDGETS=budgets is not None, num_warps=1,
    )  # fmt: skip
    return Trees(tokens, parents, depths, scores, sizes), child, sibling
