"""Triton kernel of Gated DeltaNet over draft trees: all nodes of a tree at once, from one read of its state.

The second of two kernels: `tree_solve_kernel` says which sums and works out what does not need the state.
"""

# Arguments are pointers and numbers that Triton specialises on; it has no types for them.
# ruff: noqa: ANN001, ANN201
# mypy: disallow-untyped-defs=false

from __future__ import annotations

import triton
import triton.language as tl

from specpilot_sglang.kernels.gated_delta.tree_solve_kernel import halves, parts


@triton.jit
def read(state, rows, total, PRECISION: tl.constexpr, PARTS: tl.constexpr):
    """`total` plus the product of `state` [m, n], float32, with `rows` [p, n] transposed, as loaded."""
    if PARTS:
        # Products of BF16 numbers are exact, and three of them hold all bits of a float32.
        high, middle, low = parts(state)
        columns = tl.trans(rows)
        total = tl.dot(low, columns, total)
        total = tl.dot(middle, columns, total)
        total = tl.dot(high, columns, total)
    else:
        total = tl.dot(state, tl.trans(rows.to(tl.float32)), total, input_precision=PRECISION)
    return total


@triton.jit
def read_nodes(wanted, reading, total, SLOTS: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr):
    """`total` plus `wanted` [m, SLOTS], float32, times the matrix at `reading`, to float32's accuracy."""
    node = tl.arange(0, SLOTS)
    cells = node[:, None] * SLOTS + node[None, :]
    if PARTS:
        # Of nine products of parts, the three smallest are below what float32 holds.
        high, middle, low = parts(wanted)
        read_low = tl.load(reading + 2 * SLOTS * SLOTS + cells)
        read_middle = tl.load(reading + SLOTS * SLOTS + cells)
        read_high = tl.load(reading + cells)
        total = tl.dot(low, read_high, total)
        total = tl.dot(middle, read_middle, total)
        total = tl.dot(high, read_low, total)
        total = tl.dot(middle, read_high, total)
        total = tl.dot(high, read_middle, total)
        total = tl.dot(high, read_high, total)
    else:
        total += tl.dot(wanted, tl.load(reading + cells), input_precision=PRECISION)
    return total


@triton.jit
def block_verify_kernel(
    k_ptr,
    v_ptr,
    state_ptr,
    slots_ptr,
    reading_ptr,
    scales_ptr,
    out_ptr,
    q_from_k,
    qkv_stride,
    slot_stride,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    NODES: tl.constexpr,
    SLOTS: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
    PARTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Outputs of all nodes of one request for one value head and tile of its state; see `tree.verify`."""
    tile, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    node = tl.arange(0, SLOTS)
    inside = node < NODES
    value = tl.arange(0, TILE)
    first = (request * NODES).to(tl.int64)
    target = out_ptr + first * (VALUE_HEADS * VALUE_DIM) + head * VALUE_DIM + tile * TILE
    cells = node[None, :] * (VALUE_HEADS * VALUE_DIM) + value[:, None]
    slot = tl.load(slots_ptr + request)
    if slot < 0:
        tl.store(target + cells, tl.zeros([TILE, SLOTS], dtype=out_ptr.dtype.element_ty), mask=inside[None, :])
        return
    home = state_ptr + slot.to(tl.int64) * slot_stride + (head * VALUE_DIM + tile * TILE) * KEY_DIM
    rows = k_ptr + first * qkv_stride + (head // (VALUE_HEADS // KEY_HEADS)) * KEY_DIM
    # Keys of all nodes, then their queries: one product reads the state for both.
    both = tl.arange(0, 2 * SLOTS)
    at = (both % SLOTS) * qkv_stride + tl.where(both >= SLOTS, q_from_k, 0)
    there = (both % SLOTS) < NODES
    sums = tl.zeros([TILE, 2 * SLOTS], tl.float32)
    for start in range(0, KEY_DIM, CHUNK):
        keys = start + tl.arange(0, CHUNK)
        state = tl.load(home + (value[:, None] * KEY_DIM + keys[None, :])).to(tl.float32)
        kq = tl.load(rows + (at[:, None] + keys[None, :]), mask=there[:, None], other=0.0)
        sums = read(state, kq, sums, PRECISION, PARTS)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    old, out = halves(sums, TILE, SLOTS)
    tree = request * VALUE_HEADS + head
    scales = scales_ptr + tree * 3 * SLOTS + node
    v_at = v_ptr + first * qkv_stride + head * VALUE_DIM + tile * TILE
    v = tl.load(v_at + (node[None, :] * qkv_stride + value[:, None]), mask=inside[None, :], other=0.0).to(tl.float32)
    wanted = tl.load(scales)[None, :] * v - tl.load(scales + SLOTS)[None, :] * old
    out = out * tl.load(scales + 2 * SLOTS)[None, :]
    reading = reading_ptr + tree * (3 if PARTS else 1) * SLOTS * SLOTS
    out = read_nodes(wanted, reading, out, SLOTS, PRECISION, PARTS)
    tl.store(target + cells, out.to(out_ptr.dtype.element_ty), mask=inside[None, :])
