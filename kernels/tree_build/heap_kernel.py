"""Triton kernel of the tree builder: one program a request pops the best path `budget` times from registers."""

# Arguments are pointers and numbers that Triton specialises on; it has no types for them.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disallow-untyped-defs=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _clear(
    tokens_ptr,
    parents_ptr,
    depths_ptr,
    scores_ptr,
    child_ptr,
    sibling_ptr,
    out,
    root,
    BUDGET: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Write a tree of the root alone; nodes that are never popped stay as they are here."""
    slot = tl.arange(0, SLOTS)
    inside = slot < BUDGET
    tl.store(tokens_ptr + out + slot, tl.zeros([SLOTS], dtype=tl.int64) + root, mask=inside)
    tl.store(parents_ptr + out + slot, tl.full([SLOTS], -1, dtype=tl.int64), mask=inside)
    tl.store(depths_ptr + out + slot, tl.zeros([SLOTS], dtype=tl.int64), mask=inside)
    tl.store(scores_ptr + out + slot, tl.where(slot == 0, 0.0, float("-inf")), mask=inside)
    tl.store(child_ptr + out + slot, tl.full([SLOTS], -1, dtype=tl.int64), mask=inside)
    tl.store(sibling_ptr + out + slot, tl.full([SLOTS], -1, dtype=tl.int64), mask=inside)


@triton.jit
def best_first_kernel(
    candidates_ptr,
    logprobs_ptr,
    roots_ptr,
    budgets_ptr,
    tokens_ptr,
    parents_ptr,
    depths_ptr,
    scores_ptr,
    sizes_ptr,
    child_ptr,
    sibling_ptr,
    depth_limit,
    block_depth,
    BUDGET: tl.constexpr,
    WIDTH: tl.constexpr,
    SLOTS: tl.constexpr,
    BUDGETS: tl.constexpr,
):
    """Build one tree; see `launch.build_marginals`.

    The frontier holds, for each path that may be popped next, its score, its parent's score, node and depth, its rank
    among the siblings and the sibling popped before it. A pop frees the slot for its own first child, and the next
    sibling takes the slot of the node's number, so that `BUDGET` slots suffice.
    """
    request = tl.program_id(0)
    nothing = float("-inf")
    slot = tl.arange(0, SLOTS)
    table = request * block_depth * WIDTH
    root = tl.load(roots_ptr + request)
    limit = BUDGET
    if BUDGETS:
        limit = tl.minimum(tl.load(budgets_ptr + request), BUDGET).to(tl.int32)
    out = request * BUDGET
    _clear(tokens_ptr, parents_ptr, depths_ptr, scores_ptr, child_ptr, sibling_ptr, out, root, BUDGET, SLOTS)
    tl.debug_barrier()
    first = tl.load(logprobs_ptr + table)
    open_root = depth_limit > 0
    score = tl.where((slot == 0) & open_root, first, nothing)
    base = tl.zeros([SLOTS], dtype=tl.float32)
    parent = tl.zeros([SLOTS], dtype=tl.int32)
    depth = tl.where(slot == 0, 1, 0)
    rank = tl.zeros([SLOTS], dtype=tl.int32)
    before = tl.full([SLOTS], -1, dtype=tl.int32)
    size = 1
    for node in range(1, BUDGET):
        best = tl.max(score, 0)
        alive = (best > nothing) & (node < limit)
        # Equal scores: the slot taken first.
        at = tl.min(tl.where(score == best, slot, SLOTS), 0)
        here = slot == at
        my_base = tl.sum(tl.where(here, base, 0.0), 0)
        my_parent = tl.sum(tl.where(here, parent, 0), 0)
        my_depth = tl.sum(tl.where(here, depth, 0), 0)
        my_rank = tl.sum(tl.where(here, rank, 0), 0)
        my_before = tl.sum(tl.where(here, before, 0), 0)
        row = table + (my_depth - 1) * WIDTH
        token = tl.load(candidates_ptr + row + my_rank, mask=alive, other=0)
        tl.store(tokens_ptr + out + node, token, mask=alive)
        tl.store(parents_ptr + out + node, my_parent.to(tl.int64), mask=alive)
        tl.store(depths_ptr + out + node, my_depth.to(tl.int64), mask=alive)
        tl.store(scores_ptr + out + node, best, mask=alive)
        tl.store(child_ptr + out + my_parent, tl.zeros([], dtype=tl.int64) + node, mask=alive & (my_rank == 0))
        tl.store(sibling_ptr + out + my_before, tl.zeros([], dtype=tl.int64) + node, mask=alive & (my_rank > 0))
        size += alive.to(tl.int32)
        deeper = alive & (my_depth < depth_limit)
        next_child = tl.load(logprobs_ptr + row + WIDTH, mask=deeper, other=nothing)
        next_sibling = tl.load(logprobs_ptr + row + my_rank + 1, mask=alive & (my_rank + 1 < WIDTH), other=nothing)
        there = slot == node
        score = tl.where(here, best + next_child, tl.where(there, my_base + next_sibling, score))
        base = tl.where(here, best, tl.where(there, my_base, base))
        parent = tl.where(here, node, tl.where(there, my_parent, parent))
        depth = tl.where(here, my_depth + 1, tl.where(there, my_depth, depth))
        rank = tl.where(here, 0, tl.where(there, my_rank + 1, rank))
        before = tl.where(here, -1, tl.where(there, node, before))
    tl.store(sizes_ptr + request, tl.zeros([], dtype=tl.int64) + size)
