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
    NODES: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Write a tree of the root alone; nodes that are never popped stay as they are here."""
    slot = tl.arange(0, SLOTS)
    inside = slot < NODES
    tl.store(tokens_ptr + out + slot, tl.zeros([SLOTS], dtype=tl.int64) + root, mask=inside)
    tl.store(parents_ptr + out + slot, tl.full([SLOTS], -1, dtype=tl.int64), mask=inside)
    tl.store(depths_ptr + out + slot, tl.zeros([SLOTS], dtype=tl.int64), mask=inside)
    tl.store(scores_ptr + out + slot, tl.where(slot == 0, 0.0, float("-inf")), mask=inside)
    tl.store(child_ptr + out + slot, tl.full([SLOTS], -1, dtype=tl.int64), mask=inside)
    tl.store(sibling_ptr + out + slot, tl.full([SLOTS], -1, dtype=tl.int64), mask=inside)


@triton.jit
def _best(score, slot):
    """Largest score and the lowest slot that holds it, in one reduction over keys that order like floats."""
    bits = score.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    key = tl.max(ordered * 256 + (255 - slot), 0)
    high = (key >> 8).to(tl.int32)
    bits = tl.where(high < 0, high ^ 0x7FFFFFFF, high)
    return bits.to(tl.float32, bitcast=True), 255 - (key & 255).to(tl.int32)


@triton.jit
def best_first_kernel(
    candidates_ptr,
    logprobs_ptr,
    order_ptr,
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
    budget,
    roots_stride,
    NODES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    BUDGETS: tl.constexpr,
):
    """Build one tree; see `launch.build_marginals` and `launch.build_lattice`.

    The frontier holds, for each path that may be popped next, its score, its parent's score and five small numbers
    packed into one: the parent's node, its own depth, its rank among the siblings, the sibling popped before it plus
    one, and the row of its depth's table that its parent's candidate selects. A pop frees the slot for its own first
    child, and the next sibling takes the slot of the node's number, so that `NODES` slots suffice.
    """
    request = tl.program_id(0)
    nothing = float("-inf")
    slot = tl.arange(0, SLOTS)
    table = request * block_depth * ROWS * WIDTH
    root = tl.load(roots_ptr + request * roots_stride).to(tl.int64)
    limit = budget
    if BUDGETS:
        limit = tl.minimum(tl.load(budgets_ptr + request), budget).to(tl.int32)
    out = request * NODES
    _clear(tokens_ptr, parents_ptr, depths_ptr, scores_ptr, child_ptr, sibling_ptr, out, root, NODES, SLOTS)
    tl.debug_barrier()
    first = tl.load(logprobs_ptr + table)
    score = tl.where((slot == 0) & (depth_limit > 0), first, nothing)
    base = tl.zeros([SLOTS], dtype=tl.float32)
    packed = tl.zeros([SLOTS], dtype=tl.int64) + (1 << 8)
    size = 1
    for node in range(1, NODES):
        best, at = _best(score, slot)
        alive = (best > nothing) & (node < limit)
        here = slot == at
        my_base = tl.sum(tl.where(here, base, 0.0), 0)
        mine = tl.sum(tl.where(here, packed, 0), 0)
        my_parent = (mine & 255).to(tl.int32)
        my_depth = ((mine >> 8) & 255).to(tl.int32)
        my_rank = ((mine >> 16) & 255).to(tl.int32)
        my_before = ((mine >> 24) & 255).to(tl.int32) - 1
        row = table + ((my_depth - 1) * ROWS + ((mine >> 32) & 255).to(tl.int32)) * WIDTH
        token = tl.load(candidates_ptr + row + my_rank, mask=alive, other=0)
        tl.store(tokens_ptr + out + node, token, mask=alive)
        tl.store(parents_ptr + out + node, my_parent.to(tl.int64), mask=alive)
        tl.store(depths_ptr + out + node, my_depth.to(tl.int64), mask=alive)
        tl.store(scores_ptr + out + node, best, mask=alive)
        tl.store(child_ptr + out + my_parent, tl.zeros([], dtype=tl.int64) + node, mask=alive & (my_rank == 0))
        tl.store(sibling_ptr + out + my_before, tl.zeros([], dtype=tl.int64) + node, mask=alive & (my_rank > 0))
        size += alive.to(tl.int32)
        deeper = alive & (my_depth < depth_limit)
        picked = 0
        if ROWS > 1:
            picked = tl.load(order_ptr + row + my_rank, mask=alive, other=0).to(tl.int32)
        below = table + (my_depth * ROWS + picked) * WIDTH
        next_child = tl.load(logprobs_ptr + below, mask=deeper, other=nothing)
        next_sibling = tl.load(logprobs_ptr + row + my_rank + 1, mask=alive & (my_rank + 1 < WIDTH), other=nothing)
        there = slot == node
        score = tl.where(here, best + next_child, tl.where(there, my_base + next_sibling, score))
        base = tl.where(here, best, tl.where(there, my_base, base))
        child = (my_depth + 1).to(tl.int64) * 256 + node + (tl.zeros([], dtype=tl.int64) + picked) * 4294967296
        # The next sibling: one rank further, behind this node, under the same parent and in the same row.
        sibling = mine + 65536 + (node - my_before).to(tl.int64) * 16777216
        packed = tl.where(here, child, tl.where(there, sibling, packed))
    tl.store(sizes_ptr + request, tl.zeros([], dtype=tl.int64) + size)
