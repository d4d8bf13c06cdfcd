"""Triton kernels that find the best few entries of long rows; launched by `best.py`."""

# Arguments are pointers and numbers that Triton specialises on; it has no types for them.
# ruff: noqa: ANN001, ANN201
# mypy: disallow-untyped-defs=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def maxima_kernel(logits, stride, maxima, tops, sums, vocab, blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Maximum of every block of a row, and (maximum, sum of exponentials below it) of every `BLOCKS` blocks."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    block = part * BLOCKS + tl.arange(0, BLOCKS)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(logits + row * stride + column, mask=column < vocab, other=float("-inf")).to(tl.float32)
    best = tl.max(x, 1)
    tl.store(maxima + row * blocks + block, best, mask=block < blocks)
    top = tl.max(best, 0)
    # A part may hold nothing but -inf (a grammar or padding): its sum is then 0, not NaN.
    base = tl.where(top > float("-inf"), top, 0.0)
    parts = tl.num_programs(1)
    tl.store(tops + row * parts + part, base)
    tl.store(sums + row * parts + part, tl.sum(tl.sum(tl.exp(x - base), 1), 0))


@triton.jit
def collect_kernel(logits, stride, chosen, out, vocab, K: tl.constexpr, BLOCK: tl.constexpr):
    """Copy a chosen block of a row to [row, K * BLOCK]."""
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    column = tl.load(chosen + row * K + place) * BLOCK + lane
    x = tl.load(logits + row * stride + column, mask=column < vocab, other=float("-inf")).to(tl.float32)
    tl.store(out + (row * K + place) * BLOCK + lane, x)
