"""Triton kernel of Gated DeltaNet over draft trees: what the nodes of a tree do to each other, for one value head.

With A_i the product of the decays on node i's path, S_0 the committed state and j running over i's ancestors,
node i's write is u_i = b_i (v_i - A_i S_0 k_i - sum_j (A_i / A_j) (k_j . k_i) u_j) and its output is
A_i S_0 q_i + sum_{j or i} (A_i / A_j) (k_j . q_i) u_j: the chunked form of the delta rule (Yang et al.,
arXiv 2412.06464) with "ancestor" in place of "before". Neither sum reads the state or the values, so both are put
into one matrix: the outputs are A_i S_0 q_i + sum_j R_ji b_j (v_j - A_j S_0 k_j), which `tree_block_kernel` does.

R = (I - N)^-1 Q, with N_ji = -b_i (A_i / A_j) (k_j . k_i) and Q_ji = (A_i / A_j) (k_j . q_i). A whole power series
of N would lose bits where keys repeat, since its terms grow as binomials and cancel. Within bands of four levels
they stay below four, and the bands are done one after the other.
"""

# Arguments are pointers and numbers that Triton specialises on; it has no types for them.
# ruff: noqa: ANN001, ANN201
# mypy: disallow-untyped-defs=false

from __future__ import annotations

import triton
import triton.language as tl

#: Levels of a tree that `solve` takes at a time; its three factors are made for four.
BAND = tl.constexpr(4)


@triton.jit
def parts(x):
    """The three BF16 numbers that hold all bits of a float32, largest first."""
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def halves(x, FIRST: tl.constexpr, HALF: tl.constexpr):
    """The left and the right half of the columns of `x` [FIRST, 2 * HALF]."""
    return tl.split(tl.permute(tl.reshape(x, [FIRST, 2, HALF]), [0, 2, 1]))


@triton.jit
def beside(left, right, SIZE: tl.constexpr):
    """`left` and `right` [SIZE, SIZE] side by side; `halves` undoes it."""
    return tl.reshape(tl.permute(tl.join(left, right), [0, 2, 1]), [SIZE, 2 * SIZE])


@triton.jit
def log_gates(a, b, a_log, dt_bias):
    """Log decay and write strength of each node, from its gate projections."""
    x = a.to(tl.float32) + dt_bias
    softplus = tl.where(x <= 20.0, tl.log(1.0 + tl.exp(x)), x)
    return -tl.exp(a_log) * softplus, 1.0 / (1.0 + tl.exp(-b.to(tl.float32)))


@triton.jit
def decay_ratios(log_decay, seen, node):
    """Decay from ancestor j (row) to node i (column), 0 elsewhere, and from the committed state to node i."""
    on_path = ((seen[None, :] >> node[:, None].to(tl.int64)) & 1) > 0
    path_decay = tl.sum(tl.where(on_path, log_decay[:, None], 0.0), 0)
    # The mask goes first: off the path the difference may be positive, and exp overflow.
    gap = tl.where(on_path, path_decay[None, :] - path_decay[:, None], 0.0)
    return tl.where(on_path, tl.exp(gap), 0.0), tl.exp(path_decay)


@triton.jit
def solve(between, wanted, depth, BANDS: tl.constexpr, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    """(I - between)^-1 wanted, both [SIZE, SIZE], for nodes in bands of `BAND` levels; `between` goes downward only.

    With W the part of `between` within bands and C the rest, (I - W)^-1 = (I + W^2) (I + W) gives [P | Y] from
    [C | wanted], and the result is Y + P (Y + P (Y + ...)). Products are wide where they could be narrow: Triton
    gives a product of a chain that is square to the warps row by row, half of them for nothing.
    """
    band = depth // BAND
    same = band[:, None] == band[None, :]
    within = tl.where(same, between, 0.0)
    both = beside(tl.where(same, 0.0, between), wanted, SIZE)
    square = tl.dot(within, within, input_precision=PRECISION)
    both += tl.dot(within, both, input_precision=PRECISION)
    both += tl.dot(square, both, input_precision=PRECISION)
    across, start = halves(both, SIZE, SIZE)
    result = start
    for _ in range(BANDS - 1):
        # What deeper bands add to those above them; each round is right one band further up.
        _, later = halves(tl.dot(across, beside(across, result, SIZE), input_precision=PRECISION), SIZE, SIZE)
        result = start + later
    return result


@triton.jit
def products(
    keys,
    q_from_k,
    stride,
    node,
    inside,
    KEY_DIM: tl.constexpr,
    SLOTS: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Products of all nodes' keys with each other and with all queries, and the squares of both."""
    kk, kq = tl.zeros([SLOTS, SLOTS], tl.float32), tl.zeros([SLOTS, SLOTS], tl.float32)
    k_square, q_square = tl.zeros([SLOTS], tl.float32), tl.zeros([SLOTS], tl.float32)
    for start in tl.static_range(0, KEY_DIM, CHUNK):
        at = node[:, None] * stride + (start + tl.arange(0, CHUNK))[None, :]
        k = tl.load(keys + at, mask=inside[:, None], other=0.0)
        q = tl.load(keys + q_from_k + at, mask=inside[:, None], other=0.0)
        k_square += tl.sum(k.to(tl.float32) * k.to(tl.float32), 1)
        q_square += tl.sum(q.to(tl.float32) * q.to(tl.float32), 1)
        if PARTS:
            kk = tl.dot(k, tl.trans(k), kk)
            kq = tl.dot(k, tl.trans(q), kq)
        else:
            kk = tl.dot(k.to(tl.float32), tl.trans(k.to(tl.float32)), kk, input_precision=PRECISION)
            kq = tl.dot(k.to(tl.float32), tl.trans(q.to(tl.float32)), kq, input_precision=PRECISION)
    return kk, kq, k_square, q_square


@triton.jit
def solve_kernel(
    k_ptr,
    a_ptr,
    b_ptr,
    a_log_ptr,
    dt_bias_ptr,
    slots_ptr,
    ancestors_ptr,
    depths_ptr,
    kept_a_ptr,
    kept_b_ptr,
    reading_ptr,
    scales_ptr,
    q_from_k,
    qkv_stride,
    a_stride,
    b_stride,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    NODES: tl.constexpr,
    SLOTS: tl.constexpr,
    CHUNK: tl.constexpr,
    BANDS: tl.constexpr,
    EPS: tl.constexpr,
    PRECISION: tl.constexpr,
    PARTS: tl.constexpr,
    KEEP: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """R of one tree and value head, and what scales values, old and new readings of the state; see `tree.verify`."""
    head, request = tl.program_id(0), tl.program_id(1)
    node = tl.arange(0, SLOTS)
    inside = node < NODES
    first = (request * NODES).to(tl.int64)
    a = tl.load(a_ptr + first * a_stride + head + node * a_stride, mask=inside, other=0.0)
    b = tl.load(b_ptr + first * b_stride + head + node * b_stride, mask=inside, other=0.0)
    if KEEP:
        tl.store(kept_a_ptr + first * VALUE_HEADS + head + node * VALUE_HEADS, a, mask=inside)
        tl.store(kept_b_ptr + first * VALUE_HEADS + head + node * VALUE_HEADS, b, mask=inside)
    if tl.load(slots_ptr + request) < 0:
        return
    if OVERLAP:
        # The next kernel reads the state meanwhile; it waits before it reads what is written here.
        tl.extra.cuda.gdc_launch_dependents()
    keys = k_ptr + first * qkv_stride + (head // (VALUE_HEADS // KEY_HEADS)) * KEY_DIM
    kk, kq, k_square, q_square = products(
        keys, q_from_k, qkv_stride, node, inside, KEY_DIM, SLOTS, CHUNK, PRECISION, PARTS
    )
    k_norm = 1.0 / tl.sqrt(k_square + EPS)
    q_norm = (KEY_DIM**-0.5) / tl.sqrt(q_square + EPS)
    a_log = tl.load(a_log_ptr + head).to(tl.float32)
    log_decay, beta = log_gates(a, b, a_log, tl.load(dt_bias_ptr + head).to(tl.float32))
    seen = tl.load(ancestors_ptr + first + node, mask=inside, other=0)
    ratio, whole = decay_ratios(log_decay, seen, node)
    ratio *= k_norm[:, None]
    strict = node[:, None] != node[None, :]
    between = tl.where(strict, -ratio * kk * (beta * k_norm)[None, :], 0.0)
    depth = tl.load(depths_ptr + first + node, mask=inside, other=0)
    reading = solve(between, ratio * kq * q_norm[None, :], depth, BANDS, SLOTS, PRECISION)
    tree = request * VALUE_HEADS + head
    scales = scales_ptr + tree * 3 * SLOTS + node
    tl.store(scales, beta)
    tl.store(scales + SLOTS, beta * k_norm * whole)
    tl.store(scales + 2 * SLOTS, q_norm * whole)
    cells = node[:, None] * SLOTS + node[None, :]
    if PARTS:
        high, middle, low = parts(reading)
        target = reading_ptr + tree * 3 * SLOTS * SLOTS + cells
        tl.store(target, high)
        tl.store(target + SLOTS * SLOTS, middle)
        tl.store(target + 2 * SLOTS * SLOTS, low)
    else:
        tl.store(reading_ptr + tree * SLOTS * SLOTS + cells, reading)
