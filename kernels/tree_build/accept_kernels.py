"""Triton kernels that end a tree's verify pass: the accepted path, and its keys and values; launched by `verify.py`."""

# Arguments are pointers and numbers that Triton specialises on; it has no types for them.
# ruff: noqa: ANN001, ANN201
# mypy: disallow-untyped-defs=false

from __future__ import annotations

import triton
import triton.language as tl

# As in `verify_kernels.py`, what differs from step to step is no part of what a kernel is compiled for.


@triton.jit(
    do_not_specialize_on_alignment=[
        "chosen_ptr", "slots_ptr", "lens_ptr", "front_ptr", "rows_ptr", "places_ptr", "locs_ptr", "accepted_ptr",
        "emitted_ptr", "bonus_ptr", "new_lens_ptr", "index_ptr",
    ]
)  # fmt: skip
def accept_kernel(
    tokens_ptr,
    parents_ptr,
    child_ptr,
    chosen_ptr,
    slots_ptr,
    lens_ptr,
    index_ptr,
    front_ptr,
    rows_ptr,
    places_ptr,
    locs_ptr,
    accepted_ptr,
    emitted_ptr,
    bonus_ptr,
    new_lens_ptr,
    NODES: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    LENGTH: tl.constexpr,
):
    """Follow the target's tokens from the root of one request's tree; see `verify.accept`."""
    request = tl.program_id(0)
    slot = tl.arange(0, SLOTS)
    inside = slot < NODES
    rows = request * NODES + slot
    tokens = tl.load(tokens_ptr + rows, mask=inside, other=-1)
    parents = tl.load(parents_ptr + rows, mask=inside, other=-1)
    chosen = tl.load(chosen_ptr + rows, mask=inside, other=-2)
    length = tl.load(lens_ptr + request).to(tl.int64)
    tl.store(emitted_ptr + rows, tl.zeros([SLOTS], dtype=tl.int64), mask=inside)
    tl.debug_barrier()
    node = tl.zeros([], dtype=tl.int32)
    count = tl.zeros([], dtype=tl.int32)
    bonus = tl.zeros([], dtype=tl.int64)
    for step in tl.static_range(WIDTH):
        alive = node >= 0
        token = tl.sum(tl.where(slot == node, chosen, 0), 0)
        if LENGTH > 0:
            # Simulated acceptance: the first child's token up to the last step, and there one that no child carries.
            child = tl.load(child_ptr + request * NODES + node, mask=alive, other=-1)
            if step < LENGTH - 1:
                token = tl.where(child >= 0, tl.sum(tl.where(slot == child, tokens, 0), 0), token)
            else:
                token = tl.load(tokens_ptr + request * NODES) + 1
        place = request * WIDTH + step
        front = tl.where(alive, node, step)
        tl.store(index_ptr + place, node.to(tl.int64))
        tl.store(front_ptr + place, tl.zeros([], dtype=tl.int64) + front)
        tl.store(rows_ptr + place, tl.zeros([], dtype=tl.int64) + request * NODES + front)
        tl.store(places_ptr + place, length + step)
        tl.store(locs_ptr + place, tl.load(slots_ptr + request * NODES + step, mask=step < NODES, other=0))
        tl.store(emitted_ptr + request * NODES + step, token, mask=alive)
        bonus = tl.where(alive, token, bonus)
        count += tl.where(alive, 1, 0)
        agrees = inside & (parents == node) & (tokens == token) & alive
        node = tl.max(tl.where(agrees, slot, -1), 0)
    tl.store(accepted_ptr + request, count)
    tl.store(bonus_ptr + request, bonus)
    tl.store(new_lens_ptr + request, length + count)


@triton.jit(do_not_specialize_on_alignment=["slots_ptr", "index_ptr", "lens_ptr"])
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
