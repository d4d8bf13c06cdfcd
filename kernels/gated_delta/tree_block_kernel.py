"""Triton kernel of Gated DeltaNet over draft trees: all nodes of a tree at once, from one read of its state.

With A_i the product of the decays on node i's path, S_0 the committed state and j running over i's ancestors,
node i's write is u_i = b_i (v_i - A_i S_0 k_i - sum_j (A_i / A_j) (k_j . k_i) u_j) and its output is
A_i S_0 q_i + sum_{j or i} (A_i / A_j) (k_j . q_i) u_j: the chunked form of the delta rule (Yang et al.,
arXiv 2412.06464) with "ancestor" in place of "before". Nodes of depth d are right after d rounds of the first sum.
"""

# Arguments are pointers and numbers that Triton specialises on; it has no types for them.
# ruff: noqa: ANN001, ANN201
# mypy: disallow-untyped-defs=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def exact_dot(a, b, total, PRECISION: tl.constexpr, PARTS: tl.constexpr):
    """`total` plus the product of `a` [m, n] with `b` [p, n] transposed; `a` as loaded, `b` float32."""
    if PARTS:
        # Three BF16 parts hold all bits of a float32, and products of BF16 numbers are exact.
        high = b.to(tl.bfloat16)
        rest = b - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
        total = tl.dot(a, tl.trans(low), total)
        total = tl.dot(a, tl.trans(middle), total)
        total = tl.dot(a, tl.trans(high), total)
    else:
        total = tl.dot(a.to(tl.float32), tl.trans(b), total, input_precision=PRECISION)
    return total


@triton.jit
def pair_dot(a, b, total, PRECISION: tl.constexpr, PARTS: tl.constexpr):
    """`total` plus the product of `a` [m, n] with `b` [p, n] transposed, both as loaded."""
    if PARTS:
        total = tl.dot(a, tl.trans(b), total)
    else:
        total = tl.dot(a.to(tl.float32), tl.trans(b.to(tl.float32)), total, input_precision=PRECISION)
    return total


@triton.jit
def log_gates(a, b, a_log, dt_bias):
    """Log decay and write strength of each node, from its gate projections."""
    x = a.to(tl.float32) + dt_bias
    softplus = tl.where(x <= 20.0, tl.log(1.0 + tl.exp(x)), x)
    return -tl.exp(a_log) * softplus, 1.0 / (1.0 + tl.exp(-b.to(tl.float32)))


@triton.jit
def decay_ratios(log_decay, seen, node):
    """Decay from ancestor j (column) to node i (row), 0 elsewhere, and from the committed state to node i."""
    on_path = ((seen[:, None] >> node[None, :].to(tl.int64)) & 1) > 0
    path_decay = tl.sum(tl.where(on_path, log_decay[None, :], 0.0), 1)
    # The mask goes first: off the path the difference may be positive, and exp overflow.
    gap = tl.where(on_path, path_decay[:, None] - path_decay[None, :], 0.0)
    return tl.where(on_path, tl.exp(gap), 0.0), tl.exp(path_decay)


@triton.jit
def solve(mixing, wanted, ROUNDS: tl.constexpr, PRECISION: tl.constexpr):
    """Writes of all nodes; each round is right one level deeper."""
    writes = wanted
    for _ in range(ROUNDS):
        writes = wanted - tl.dot(mixing, writes, input_precision=PRECISION)
    return writes


@triton.jit
def block_verify_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    a_ptr,
    b_ptr,
    a_log_ptr,
    dt_bias_ptr,
    state_ptr,
    slots_ptr,
    ancestors_ptr,
    out_ptr,
    kept_a_ptr,
    kept_b_ptr,
    qkv_stride,
    a_stride,
    b_stride,
    slot_stride,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    NODES: tl.constexpr,
    SLOTS: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    ROUNDS: tl.constexpr,
    EPS: tl.constexpr,
    PRECISION: tl.constexpr,
    PARTS: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Outputs of all nodes of one request for one value head and tile of its state; see `tree.verify`."""
    tile, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    node = tl.arange(0, SLOTS)
    inside = node < NODES
    rows = (request * NODES + node).to(tl.int64)
    values = tile * TILE + tl.arange(0, TILE)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    target = out_ptr + rows[:, None] * VALUE_HEADS * VALUE_DIM + head * VALUE_DIM + values[None, :]
    a = tl.load(a_ptr + rows * a_stride + head, mask=inside, other=0.0)
    b = tl.load(b_ptr + rows * b_stride + head, mask=inside, other=0.0)
    if KEEP:
        tl.store(kept_a_ptr + rows * VALUE_HEADS + head, a, mask=inside & (tile == 0))
        tl.store(kept_b_ptr + rows * VALUE_HEADS + head, b, mask=inside & (tile == 0))
    slot = tl.load(slots_ptr + request)
    if slot < 0:
        tl.store(target, tl.zeros([SLOTS, TILE], dtype=out_ptr.dtype.element_ty), mask=inside[:, None])
        return
    at = rows[:, None] * qkv_stride + key_head * KEY_DIM
    place = slot.to(tl.int64) * slot_stride + head * VALUE_DIM * KEY_DIM + values[:, None] * KEY_DIM
    kk, qk = tl.zeros([SLOTS, SLOTS], tl.float32), tl.zeros([SLOTS, SLOTS], tl.float32)
    old, out = tl.zeros([SLOTS, TILE], tl.float32), tl.zeros([SLOTS, TILE], tl.float32)
    k_square, q_square = tl.zeros([SLOTS], tl.float32), tl.zeros([SLOTS], tl.float32)
    for start in range(0, KEY_DIM, CHUNK):
        keys = start + tl.arange(0, CHUNK)
        k = tl.load(k_ptr + at + keys[None, :], mask=inside[:, None], other=0.0)
        q = tl.load(q_ptr + at + keys[None, :], mask=inside[:, None], other=0.0)
        state = tl.load(state_ptr + place + keys[None, :]).to(tl.float32)
        kk = pair_dot(k, k, kk, PRECISION, PARTS)
        qk = pair_dot(q, k, qk, PRECISION, PARTS)
        old = exact_dot(k, state, old, PRECISION, PARTS)
        out = exact_dot(q, state, out, PRECISION, PARTS)
        k_square += tl.sum(k.to(tl.float32) * k.to(tl.float32), 1)
        q_square += tl.sum(q.to(tl.float32) * q.to(tl.float32), 1)
    k_norm = 1.0 / tl.sqrt(k_square + EPS)
    q_norm = (KEY_DIM**-0.5) / tl.sqrt(q_square + EPS)
    a_log = tl.load(a_log_ptr + head).to(tl.float32)
    log_decay, beta = log_gates(a, b, a_log, tl.load(dt_bias_ptr + head).to(tl.float32))
    seen = tl.load(ancestors_ptr + rows, mask=inside, other=0)
    ratio, whole = decay_ratios(log_decay, seen, node)
    strict = node[:, None] != node[None, :]
    mixing = tl.where(strict, ratio * kk * (beta * k_norm)[:, None] * k_norm[None, :], 0.0)
    reading = ratio * qk * q_norm[:, None] * k_norm[None, :]
    v_at = rows[:, None] * qkv_stride + head * VALUE_DIM + values[None, :]
    v = tl.load(v_ptr + v_at, mask=inside[:, None], other=0.0).to(tl.float32)
    wanted = beta[:, None] * (v - old * (k_norm * whole)[:, None])
    writes = solve(mixing, wanted, ROUNDS, PRECISION)
    out = out * (q_norm * whole)[:, None] + tl.dot(reading, writes, input_precision=PRECISION)
    tl.store(target, out.to(out_ptr.dtype.element_ty), mask=inside[:, None])
