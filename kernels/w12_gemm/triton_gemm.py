"""The W12 GEMM in Triton, for GPUs and shapes the CUDA kernel does not take: row-major planes, any N, K and M.

Slower than the CUDA kernel, with the same promises: escapes are put in place before the product, tokens go through in
tiles of 16 whatever their number, and each result is one sum in one order, so a token's bits do not depend on the
others. Source of the decoder: design section 5; oracle: `ref.w12_gemm_ref`.
"""

# Triton kernels take pointers and constants that have no Python type.
# mypy: disallow-untyped-defs=False, disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from specpilot_sglang.w12.codec_torch import W12Tensor, escape_rows

#: Rows and columns of a block of weights, tokens of a tile.
BLOCK_N, BLOCK_K, BLOCK_M = 64, 64, 16


@dataclass(frozen=True)
class BlockWeight:
    """A weight in row-major planes with its escapes sorted by block.

    Attributes:
        planes: the encoded matrix.
        begin: [row blocks * column blocks + 1] int32, first escape of each block.
        place: int32, row * BLOCK_K + column inside the block.
        value: int32, the BF16 bits in the upper half.
    """

    planes: W12Tensor
    begin: torch.Tensor
    place: torch.Tensor
    value: torch.Tensor


def pack_blocks(weight: W12Tensor) -> BlockWeight:
    """Return a weight [N, K] with its escapes sorted by block, on its own device."""
    row, col = escape_rows(weight), weight.col
    across = -(-weight.k // BLOCK_K)
    blocks = -(-weight.n // BLOCK_N) * across
    block = row // BLOCK_N * across + col // BLOCK_K
    block, order = block.sort(stable=True)
    place = (row % BLOCK_N * BLOCK_K + col % BLOCK_K)[order]
    begin = torch.zeros(blocks + 1, dtype=torch.int32, device=row.device)
    begin[1:] = torch.bincount(block, minlength=blocks).cumsum(0)
    return BlockWeight(weight, begin, place.int(), weight.val[order].int() << 16)


def w12_gemm_triton(x: torch.Tensor, weight: BlockWeight) -> torch.Tensor:
    """Return `x @ weight.T` in the dtype of `x`.

    Args:
        x: [M, K] on the weight's device, columns contiguous: bfloat16, or float32 (products in IEEE float32).
        weight: [N, K].

    Raises:
        ValueError: a shape or layout that does not fit.
    """
    planes = weight.planes
    if x.dim() != 2 or x.shape[1] != planes.k or x.stride(1) != 1:
        raise ValueError(f"x must be [M, {planes.k}] with contiguous columns, not {tuple(x.shape)}")
    y = torch.empty((x.shape[0], planes.n), dtype=torch.float32, device=x.device)
    grid = (-(-planes.n // BLOCK_N), -(-x.shape[0] // BLOCK_M))
    if all(grid):
        _gemm[grid](
            x, planes.a, planes.b, planes.base, weight.begin, weight.place, weight.value, y,
            x.shape[0], planes.n, planes.k, x.stride(0), planes.b.shape[1],
            ZERO_CODE=planes.zero_code, BF16=x.dtype == torch.bfloat16, N_BLOCK=BLOCK_N, K_BLOCK=BLOCK_K,
            M_BLOCK=BLOCK_M,
        )  # fmt: skip
    return y.to(x.dtype)


@triton.jit
def _decode(a, b, base, columns, ZERO_CODE: tl.constexpr):  # noqa: ANN001, ANN202
    """Return the float32 bits of a block: from code bytes, nibble bytes, the rows' windows and column numbers."""
    low = (b.to(tl.int32) >> ((columns & 1) * 4)[None, :]) & 15
    magnitude = ((a.to(tl.int32) & 0x7F) << 4) | low
    bits = magnitude + (base.to(tl.int32) << 7)[:, None]
    if ZERO_CODE:
        bits = tl.where(magnitude == 0, 0, bits)
    return (bits | ((a.to(tl.int32) & 0x80) << 8)) << 16


@triton.jit
def _gemm(  # noqa: ANN202
    x_ptr, a_ptr, b_ptr, base_ptr, begin_ptr, place_ptr, value_ptr, y_ptr, m, n, k, x_stride, b_stride,  # noqa: ANN001
    ZERO_CODE: tl.constexpr, BF16: tl.constexpr, N_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr, M_BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * N_BLOCK + tl.arange(0, N_BLOCK)
    tokens = tl.program_id(1) * M_BLOCK + tl.arange(0, M_BLOCK)
    inside = tl.arange(0, N_BLOCK)[:, None] * K_BLOCK + tl.arange(0, K_BLOCK)[None, :]
    base = tl.load(base_ptr + rows, mask=rows < n, other=0)
    blocks = tl.cdiv(k, K_BLOCK)
    total = tl.zeros((N_BLOCK, M_BLOCK), dtype=tl.float32)
    for block in range(0, blocks):
        columns = block * K_BLOCK + tl.arange(0, K_BLOCK)
        mask = (rows < n)[:, None] & (columns < k)[None, :]
        wide = rows.to(tl.int64)[:, None]
        a = tl.load(a_ptr + wide * k + columns[None, :], mask=mask, other=0)
        b = tl.load(b_ptr + wide * b_stride + (columns // 2)[None, :], mask=mask, other=0)
        bits = _decode(a, b, base, columns, ZERO_CODE)
        here = tl.program_id(0) * blocks + block
        for escape in range(tl.load(begin_ptr + here), tl.load(begin_ptr + here + 1)):
            bits = tl.where(inside == tl.load(place_ptr + escape), tl.load(value_ptr + escape), bits)
        w = tl.where(mask, bits, 0).to(tl.float32, bitcast=True)
        taken = (tokens < m)[None, :] & (columns < k)[:, None]
        x = tl.load(x_ptr + tokens.to(tl.int64)[None, :] * x_stride + columns[:, None], mask=taken, other=0.0)
        if BF16:  # noqa: SIM108
            total = tl.dot(w.to(tl.bfloat16), x, total)
        else:
            total = tl.dot(w, x, total, input_precision="ieee")
    target = y_ptr + tokens.to(tl.int64)[None, :] * n + rows[:, None]
    tl.store(target, total, mask=(rows < n)[:, None] & (tokens < m)[None, :])
