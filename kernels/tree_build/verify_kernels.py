"""Triton kernels around a tree's verify pass: what the pass reads, the accepted path, and its keys and values."""

# Arguments are pointers and numbers that Triton specialises on; it has no types for them.
# ruff: noqa: ANN001, ANN201
# mypy: disallow-untyped-defs=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def inputs_kernel(
    parents_ptr,
    depths_ptr,
    lens_ptr,
    positions_ptr,
    mask_ptr,
    nodes_of_ptr,
    levels_ptr,
    owners_ptr,
    ancestors_ptr,
    NODES: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BATCH: tl.constexpr,
    MASK: tl.constexpr,
    PATHS: tl.constexpr,
    OWNERS: tl.constexpr,
):
    """Positions, attention mask and paths of one request's tree; see `verify.write_inputs`."""
    request = tl.program_id(0)
    node = tl.arange(0, SLOTS)
    inside = node < NODES
    rows = request * NODES + node
    length = tl.load(lens_ptr + request).to(tl.int64)
    depth = tl.load(depths_ptr + rows, mask=inside, other=0)
    tl.store(positions_ptr + rows, length + depth, mask=inside)
    one = tl.full([SLOTS], 1, dtype=tl.int64)
    above = node.to(tl.int64)
    seen = one << above
    for step in tl.static_range(WIDTH):
        if PATHS:
            on_path = inside & (above >= 0)
            tl.store(nodes_of_ptr + rows * WIDTH + depth - step, above.to(tl.int32), mask=on_path & (depth >= step))
            tl.store(nodes_of_ptr + rows * WIDTH + step, tl.full([SLOTS], -1, tl.int32), mask=inside & (step > depth))
        above = tl.load(parents_ptr + request * NODES + above, mask=inside & (above >= 0), other=-1)
        seen = seen | tl.where(above >= 0, one << tl.maximum(above, 0), 0)
    grid = ((seen[:, None] >> node[None, :].to(tl.int64)) & 1) > 0
    both = inside[:, None] & inside[None, :]
    if MASK:
        other = tl.arange(0, BATCH)
        before = tl.load(lens_ptr + other, mask=other < request, other=-NODES).to(tl.int64)
        start = tl.sum((before + NODES) * NODES, 0)
        cells = start + node[:, None] * (length + NODES) + length + node[None, :]
        tl.store(mask_ptr + cells, grid.to(tl.int8), mask=both)
    if PATHS:
        tl.store(levels_ptr + rows, depth.to(tl.int32), mask=inside)
        tl.store(ancestors_ptr + rows, seen, mask=inside)
    if OWNERS:
        parents = tl.load(parents_ptr + rows, mask=inside, other=-1)
        inner = tl.sum((parents[:, None] == node[None, :]).to(tl.int32), 0) > 0
        # Leaves by row again: a row's own place on the diagonal tells whether it is one.
        leaf = tl.sum(((node[:, None] == node[None, :]) & ~inner[None, :]).to(tl.int32), 1) > 0
        owner = tl.min(tl.where(grid & leaf[:, None] & both, node[:, None], SLOTS), 0)
        tl.store(owners_ptr + rows, owner.to(tl.int32), mask=inside)


@triton.jit
def suffix_kernel(
    nodes_of_ptr,
    levels_ptr,
    slots_ptr,
    table_ptr,
    seen_ptr,
    live,
    table_stride,
    NODES: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """KV slots of each node's path, one row of a page table a node; see `verify.write_suffixes`."""
    request = tl.program_id(0)
    node = tl.arange(0, SLOTS)
    inside = node < NODES
    rows = request * NODES + node
    real = inside & (request < live)
    level = tl.load(levels_ptr + rows, mask=real, other=0)
    tl.store(seen_ptr + rows, level + 1, mask=inside)
    for place in tl.static_range(WIDTH):
        on_path = real & (place <= level)
        at = tl.load(nodes_of_ptr + rows * WIDTH + place, mask=on_path, other=0)
        slot = tl.load(slots_ptr + request * NODES + at, mask=on_path, other=0)
        tl.store(table_ptr + rows * table_stride + place, slot.to(tl.int32), mask=on_path)


@triton.jit
def accept_kernel(
    tokens_ptr,
    parents_ptr,
    chosen_ptr,
    lens_ptr,
    index_ptr,
    front_ptr,
    accepted_ptr,
    emitted_ptr,
    bonus_ptr,
    new_lens_ptr,
    NODES: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Follow the target's tokens from the root of one request's tree; see `verify.accept`."""
    request = tl.program_id(0)
    slot = tl.arange(0, SLOTS)
    inside = slot < NODES
    rows = request * NODES + slot
    tokens = tl.load(tokens_ptr + rows, mask=inside, other=-1)
    parents = tl.load(parents_ptr + rows, mask=inside, other=-1)
    chosen = tl.load(chosen_ptr + rows, mask=inside, other=-2)
    tl.store(emitted_ptr + rows, tl.zeros([SLOTS], dtype=tl.int64), mask=inside)
    tl.debug_barrier()
    node = tl.zeros([], dtype=tl.int32)
    count = tl.zeros([], dtype=tl.int32)
    bonus = tl.zeros([], dtype=tl.int64)
    for step in tl.static_range(WIDTH):
        alive = node >= 0
        token = tl.sum(tl.where(slot == node, chosen, 0), 0)
        tl.store(index_ptr + request * WIDTH + step, node.to(tl.int64))
        tl.store(front_ptr + request * WIDTH + step, tl.zeros([], dtype=tl.int64) + tl.where(alive, node, step))
        tl.store(emitted_ptr + request * NODES + step, token, mask=alive)
        bonus = tl.where(alive, token, bonus)
        count += tl.where(alive, 1, 0)
        agrees = inside & (parents == node) & (tokens == token) & alive
        node = tl.max(tl.where(agrees, slot, -1), 0)
    tl.store(accepted_ptr + request, count)
    tl.store(bonus_ptr + request, bonus)
    tl.store(new_lens_ptr + request, tl.load(lens_ptr + request).to(tl.int64) + count)


@triton.jit
def move_kernel(
    data_ptr,
    stride_ptr,
    slots_ptr,
    index_ptr,
    lens_ptr,
    NODES: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    """Bring one request's accepted rows of one buffer to the front of its window; see `verify.move_rows`.

    A path's nodes rise and none stands before its own place, so going up the path never overwrites a row that is
    still to be read; a lane keeps to its own bytes, so no other lane's copies matter.
    """
    request = tl.program_id(0)
    buffer = tl.program_id(1)
    stride = tl.load(stride_ptr + buffer).to(tl.int64)
    base = tl.cast(tl.load(data_ptr + buffer), tl.pointer_type(tl.uint8))
    byte = tl.program_id(2) * TILE + tl.arange(0, TILE)
    for step in range(1, tl.load(lens_ptr + request)):
        node = tl.load(index_ptr + request * WIDTH + step)
        source = tl.load(slots_ptr + request * NODES + node)
        target = tl.load(slots_ptr + request * NODES + step)
        moves = (byte < stride) & (node != step)
        tl.store(base + target * stride + byte, tl.load(base + source * stride + byte, mask=moves, other=0), mask=moves)
