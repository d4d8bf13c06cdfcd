"""Triton kernels before a tree's verify pass: what the draft block and the pass read; launched by `verify.py`."""

# Arguments are pointers and numbers that Triton specialises on; it has no types for them.
# ruff: noqa: ANN001, ANN201
# mypy: disallow-untyped-defs=false

from __future__ import annotations

import triton
import triton.language as tl

# Numbers and addresses that differ from step to step must not be part of what a kernel is compiled for: a batch of
# another size, or a buffer that begins 8 bytes off, would stop the scheduler for the compiler, once for each width.
# Rows of bookkeeping gain nothing from aligned loads.

#: Requests, or rows, whose lengths are added up at a time.
_TOGETHER: tl.constexpr = tl.constexpr(64)
_ROWS: tl.constexpr = tl.constexpr(256)


@triton.jit(do_not_specialize_on_alignment=["lens_ptr", "positions_ptr", "mask_ptr"])
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
        start = tl.zeros([], dtype=tl.int64)
        for first in range(0, request, _TOGETHER):
            other = first + tl.arange(0, _TOGETHER)
            before = tl.load(lens_ptr + other, mask=other < request, other=-NODES).to(tl.int64)
            start += tl.sum((before + NODES) * NODES, 0)
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


@triton.jit(do_not_specialize=["live", "table_stride"], do_not_specialize_on_alignment=["slots_ptr"])
def suffix_kernel(
    nodes_of_ptr,
    levels_ptr,
    slots_ptr,
    table_ptr,
    seen_ptr,
    ends_ptr,
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
    before = tl.zeros([], dtype=tl.int32)
    for first in range(0, request * NODES, _ROWS):
        row = first + tl.arange(0, _ROWS)
        earlier = row < request * NODES
        above = tl.load(levels_ptr + row, mask=earlier & (row < live * NODES), other=0)
        before += tl.sum(tl.where(earlier, above + 1, 0), 0)
    tl.store(ends_ptr + rows + 1, before + tl.cumsum(tl.where(inside, level + 1, 0), 0), mask=inside)
    for place in tl.static_range(WIDTH):
        on_path = real & (place <= level)
        at = tl.load(nodes_of_ptr + rows * WIDTH + place, mask=on_path, other=0)
        slot = tl.load(slots_ptr + request * NODES + at, mask=on_path, other=0)
        tl.store(table_ptr + rows * table_stride + place, slot.to(tl.int32), mask=on_path)


@triton.jit(
    do_not_specialize_on_alignment=[
        "bonus_ptr", "lens_ptr", "pools_ptr", "ids_ptr", "positions_ptr", "block_ptr", "window_ptr",
    ]
)  # fmt: skip
def open_kernel(
    bonus_ptr,
    lens_ptr,
    pools_ptr,
    table_ptr,
    ids_ptr,
    positions_ptr,
    block_ptr,
    window_ptr,
    table_stride,
    table_width,
    MASK_TOKEN: tl.constexpr,
    BLOCK: tl.constexpr,
    NODES: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """What one request's draft block and verify pass begin with; see `verify.open_step`."""
    request = tl.program_id(0)
    length = tl.load(lens_ptr + request).to(tl.int64)
    column = tl.arange(0, SLOTS)
    row = table_ptr + tl.load(pools_ptr + request).to(tl.int64) * table_stride
    # A request at the end of its row has no slots there; padding's slot takes what is written.
    slots = tl.load(row + length + column, mask=length + column < table_width, other=0).to(tl.int64)
    tl.store(window_ptr + request * NODES + column, slots, mask=column < NODES)
    block = request * BLOCK + column
    inside = column < BLOCK
    tl.store(block_ptr + block, slots, mask=inside)
    tl.store(positions_ptr + block, length + column, mask=inside)
    bonus = tl.load(bonus_ptr + request).to(tl.int64)
    tl.store(ids_ptr + block, tl.where(column == 0, bonus, MASK_TOKEN), mask=inside)
