"""Triton kernels of Gated DeltaNet over draft trees: every path in registers, no state stored but the accepted one."""

# Arguments are pointers and numbers that Triton specialises on; it has no types for them.
# ruff: noqa: ANN001, ANN201
# mypy: disallow-untyped-defs=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gates_of(a, b, a_log, dt_bias):
    """Decay exp(g) and write strength of one token and head, from its gate projections (float32 scalars)."""
    x = a + dt_bias
    softplus = tl.where(x <= 20.0, tl.log(1.0 + tl.exp(x)), x)
    return tl.exp(-tl.exp(a_log) * softplus), 1.0 / (1.0 + tl.exp(-b))


@triton.jit
def normalised(x, eps: tl.constexpr):
    """L2-normalise a float32 vector."""
    return x * (1.0 / tl.sqrt(tl.sum(x * x, 0) + eps))


@triton.jit
def advance(state, k, v, decay, beta, rounds_to: tl.constexpr):
    """One token's update of a state tile [value tile, key dim], rounded as the state's slot would round it."""
    state = state * decay
    delta = (v - tl.sum(state * k[None, :], 1)) * beta
    state = state + delta[:, None] * k[None, :]
    return state.to(rounds_to).to(tl.float32)


@triton.jit
def verify_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    a_ptr,
    b_ptr,
    a_log_ptr,
    dt_bias_ptr,
    state_ptr,
    slots_ptr,
    paths_ptr,
    depths_ptr,
    owners_ptr,
    out_ptr,
    q_stride,
    k_stride,
    v_stride,
    slot_stride,
    nodes,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
):
    """Outputs of all nodes of all requests; one program a leaf's path, value head and value tile."""
    row, head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    request = row // nodes
    leaf = row % nodes
    slot = tl.load(slots_ptr + request)
    if slot < 0:
        return
    if tl.load(owners_ptr + row) != leaf:
        return
    keys = tl.arange(0, KEY_DIM)
    values = tile * TILE + tl.arange(0, TILE)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    place = slot.to(tl.int64) * slot_stride + head * VALUE_DIM * KEY_DIM
    cells = values[:, None] * KEY_DIM + keys[None, :]
    state = tl.load(state_ptr + place + cells).to(tl.float32)
    a_log = tl.load(a_log_ptr + head).to(tl.float32)
    dt_bias = tl.load(dt_bias_ptr + head).to(tl.float32)
    for step in range(tl.load(depths_ptr + row) + 1):
        node = tl.load(paths_ptr + row * WIDTH + step)
        token = (request * nodes + node).to(tl.int64)
        q = tl.load(q_ptr + token * q_stride + key_head * KEY_DIM + keys).to(tl.float32)
        k = tl.load(k_ptr + token * k_stride + key_head * KEY_DIM + keys).to(tl.float32)
        v = tl.load(v_ptr + token * v_stride + head * VALUE_DIM + values).to(tl.float32)
        a = tl.load(a_ptr + token * VALUE_HEADS + head).to(tl.float32)
        b = tl.load(b_ptr + token * VALUE_HEADS + head).to(tl.float32)
        decay, beta = gates_of(a, b, a_log, dt_bias)
        state = advance(state, normalised(k, EPS), v, decay, beta, state_ptr.dtype.element_ty)
        q = normalised(q, EPS) * (KEY_DIM**-0.5)
        out = tl.sum(state * q[None, :], 1)
        mine = tl.load(owners_ptr + request * nodes + node) == leaf
        target = out_ptr + token * VALUE_HEADS * VALUE_DIM + head * VALUE_DIM + values
        tl.store(target, out.to(out_ptr.dtype.element_ty), mask=(values >= 0) & mine)


@triton.jit(do_not_specialize=["batch", "nodes"])
def commit_kernel(
    k_ptr,
    v_ptr,
    a_ptr,
    b_ptr,
    a_log_ptr,
    dt_bias_ptr,
    state_ptr,
    slots_ptr,
    path_ptr,
    lens_ptr,
    track_slots_ptr,
    track_steps_ptr,
    k_stride,
    v_stride,
    k_layer,
    v_layer,
    gate_layer,
    state_layer,
    slot_stride,
    batch,
    nodes,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    TRACK: tl.constexpr,
):
    """Replay the accepted path into its slot; one program a layer, request, value head and value tile."""
    row, head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    layer = (row // batch).to(tl.int64)
    request = row % batch
    slot = tl.load(slots_ptr + request)
    steps = tl.load(lens_ptr + request)
    if slot < 0:
        return
    keys = tl.arange(0, KEY_DIM)
    values = tile * TILE + tl.arange(0, TILE)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    cells = head * VALUE_DIM * KEY_DIM + values[:, None] * KEY_DIM + keys[None, :]
    pool = state_ptr + layer * state_layer
    home = pool + slot.to(tl.int64) * slot_stride + cells
    state = tl.load(home).to(tl.float32)
    a_log = tl.load(a_log_ptr + layer * VALUE_HEADS + head).to(tl.float32)
    dt_bias = tl.load(dt_bias_ptr + layer * VALUE_HEADS + head).to(tl.float32)
    for step in range(steps):
        node = tl.load(path_ptr + request * WIDTH + step)
        token = (request * nodes + node).to(tl.int64)
        k = tl.load(k_ptr + layer * k_layer + token * k_stride + key_head * KEY_DIM + keys).to(tl.float32)
        v = tl.load(v_ptr + layer * v_layer + token * v_stride + head * VALUE_DIM + values).to(tl.float32)
        gate = layer * gate_layer + token * VALUE_HEADS + head
        decay, beta = gates_of(
            tl.load(a_ptr + gate).to(tl.float32), tl.load(b_ptr + gate).to(tl.float32), a_log, dt_bias
        )
        state = advance(state, normalised(k, EPS), v, decay, beta, state_ptr.dtype.element_ty)
        if TRACK:
            track_slot = tl.load(track_slots_ptr + request)
            wanted = (tl.load(track_steps_ptr + request) == step) & (track_slot >= 0)
            copy = pool + track_slot.to(tl.int64) * slot_stride + cells
            tl.store(copy, state.to(state_ptr.dtype.element_ty), mask=(cells >= 0) & wanted)
    tl.store(home, state.to(state_ptr.dtype.element_ty))
