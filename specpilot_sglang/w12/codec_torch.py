"""W12 encode and decode in torch, for load time: the same bits as `codec`, on the tensor's own device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12.codec import blocks
from specpilot_sglang.w12.spec import WINDOW, W12Matrix
from specpilot_sglang.w12.windows import RowChoice, Windows, choose, row_choice


@dataclass(frozen=True)
class W12Tensor:
    """An encoded matrix on a device; fields as in `spec.W12Matrix`, `val` as int16 bit patterns."""

    a: torch.Tensor
    b: torch.Tensor
    base: torch.Tensor
    row_ptr: torch.Tensor
    col: torch.Tensor
    val: torch.Tensor
    k: int
    zero_code: bool
    zeros: int = 0

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.base.shape[0])

    def to_numpy(self) -> W12Matrix:
        """Return the same matrix in host memory (shares it when it is there already)."""
        a, b, base, row_ptr, col = (t.cpu().numpy() for t in (self.a, self.b, self.base, self.row_ptr, self.col))
        val = self.val.cpu().numpy().view(np.uint16)
        return W12Matrix(a, b, base, row_ptr, col, val, self.k, self.zero_code, self.zeros)

    @classmethod
    def from_numpy(cls, matrix: W12Matrix, device: torch.device | str = "cpu") -> W12Tensor:
        """Return a host matrix on a device (shares the memory on the CPU)."""
        a, b, base, row_ptr, col, val = (
            torch.from_numpy(np.ascontiguousarray(part)).to(device)
            for part in (matrix.a, matrix.b, matrix.base, matrix.row_ptr, matrix.col, matrix.val.view(np.int16))
        )
        return cls(a, b, base, row_ptr, col, val, matrix.k, matrix.zero_code, matrix.zeros)


def require_bf16_matrix(weight: torch.Tensor) -> None:
    """Raise `W12Error` unless `weight` is a materialised BF16 matrix."""
    if weight.is_meta:
        raise W12Error("a meta tensor has no values to encode", fix="load the weights before W12 encodes them")
    if weight.dtype != torch.bfloat16 or weight.dim() != 2 or weight.layout != torch.strided:
        raise W12Error(
            f"W12 encodes a dense BF16 matrix, not {weight.dtype} of shape {tuple(weight.shape)}",
            fix="only BF16 weights have a W12 form; leave other dtypes as they are",
        )


def encode(weight: torch.Tensor, windows: Windows | None = None, zero_code: bool | None = None) -> W12Tensor:
    """Encode a BF16 matrix on its device.

    Args:
        weight: [N, K] bfloat16; any strides, any storage offset, not meta.
        windows: bases to use instead of the best ones.
        zero_code: have the zero code or not; None chooses the smaller result.

    Raises:
        W12Error: not a materialised BF16 matrix.
    """
    require_bf16_matrix(weight)
    bits = weight.detach().view(torch.int16)
    n, k = bits.shape
    best, zeros = best_windows(bits, zero_code)
    chosen = windows if windows is not None else best
    base = torch.from_numpy(chosen.base).to(bits.device)
    a = torch.zeros((n, k), dtype=torch.uint8, device=bits.device)
    b = torch.zeros((n, -(-k // 2)), dtype=torch.uint8, device=bits.device)
    rows, cols, vals = [], [], []
    for r0, r1, c0, c1 in blocks(n, k):
        part = bits[r0:r1, c0:c1]
        coded, low, escaped = _codes(part, base[r0:r1], chosen.zero_code)
        a[r0:r1, c0:c1] = coded
        nibbles = b[r0:r1, c0 // 2 : -(-c1 // 2)]
        nibbles.copy_(low[:, 0::2])
        nibbles[:, : (c1 - c0) // 2] |= low[:, 1::2] << 4
        row, col = escaped.nonzero(as_tuple=True)
        rows.append(row + r0)
        cols.append(col + c0)
        vals.append(part[row, col])
    row_ptr = torch.zeros(n + 1, dtype=torch.int64, device=bits.device)
    empty = torch.zeros(0, dtype=torch.int64, device=bits.device)
    row_ptr[1:] = torch.bincount(torch.cat(rows or [empty]), minlength=n).cumsum(0)
    return W12Tensor(
        a, b, base, row_ptr, torch.cat(cols or [empty]), torch.cat(vals or [empty.short()]), k, chosen.zero_code, zeros
    )


def decode(tensor: W12Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the [N, K] bfloat16 matrix, written into `out` when given (same shape, same device)."""
    result = torch.empty((tensor.n, tensor.k), dtype=torch.bfloat16, device=tensor.a.device) if out is None else out
    bits = result.view(torch.int16)
    for r0, r1, c0, c1 in blocks(tensor.n, tensor.k):
        a = tensor.a[r0:r1, c0:c1].short()
        low = _low_nibbles(tensor.b[r0:r1, c0 // 2 : -(-c1 // 2)], c1 - c0)
        magnitude = ((a & 0x7F) << 4).add_(low)
        shift = tensor.base[r0:r1, None].short() << 7
        if tensor.zero_code:
            magnitude = torch.where(magnitude == 0, magnitude, magnitude + shift)
        else:
            magnitude += shift
        # -32768 is the sign bit alone: no shift into it, so no reliance on how an overflow wraps.
        torch.add(magnitude, a >> 7, alpha=-32768, out=bits[r0:r1, c0:c1])
    bits[escape_rows(tensor), tensor.col] = tensor.val
    return result


def nested8_decode(tensor: W12Tensor) -> torch.Tensor:
    """Return the 8-bit view as a [N, K] bfloat16 matrix; see `codec.nested8_decode`."""
    a = tensor.a.int()
    base = tensor.base[:, None].int()
    exponent = ((a >> 3) & 15) + base
    middle = torch.where(exponent == 255, 0, 8)
    bits = _to_int16(((a & 0x80) << 8) | (exponent << 7) | ((a & 7) << 4) | middle)
    rows = escape_rows(tensor)
    above = ((tensor.val.int() >> 7) & 0xFF) >= tensor.base[rows].int() + WINDOW
    bits[rows[above], tensor.col[above]] = tensor.val[above]
    return bits.view(torch.bfloat16)


def best_windows(bits: torch.Tensor, zero_code: bool | None = None) -> tuple[Windows, int]:
    """Return the best windows of [N, K] int16 bit patterns, and how many of them are +-0.0."""
    n, k = bits.shape
    choices: list[RowChoice] = []
    exponent = power = np.zeros((0, 256), np.int64)
    for r0, r1, c0, c1 in blocks(n, k):
        part = bits[r0:r1, c0:c1]
        # One histogram a row over the exponent and whether the mantissa is 0.
        index = ((part >> 6) & 0x1FE).bitwise_or_((part & 0x7F) == 0).int()
        index += (torch.arange(r1 - r0, device=bits.device, dtype=torch.int32) << 9)[:, None]
        # 32 bits count a row's weights, and the choice below streams half as much memory as with 64.
        both = torch.bincount(index.flatten(), minlength=(r1 - r0) << 9).int().cpu().numpy().reshape(-1, 256, 2)
        second = both[:, :, 1]
        first = both[:, :, 0] + second
        exponent, power = (first, second) if c0 == 0 else (exponent + first, power + second)
        if c1 == k:
            choices.append(row_choice(exponent, power, k))
    return choose(choices, n, k, zero_code)


def escape_rows(tensor: W12Tensor) -> torch.Tensor:
    """Return the row of each escape, [E] int64."""
    rows = torch.arange(tensor.n, device=tensor.a.device)
    return torch.repeat_interleave(rows, tensor.row_ptr.diff())


def _codes(part: torch.Tensor, base: torch.Tensor, zero_code: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return plane A, the low nibbles and the mask of escapes of a block of int16 bit patterns."""
    off = (part & 0x7FFF).sub_(base[:, None].short() << 7)  # 16 bits hold every difference: bases end at 240
    escaped = (off < 0).logical_or_(off >= WINDOW << 7)
    if zero_code:
        zero = (part & 0x7FFF) == 0
        escaped = escaped.logical_or_(off == 0).logical_and_(~zero)
        off.masked_fill_(zero, 0)
    a = ((part >> 8) & 0x80).bitwise_or_(off >> 4).masked_fill_(escaped, 0)
    return a.to(torch.uint8), off.bitwise_and_(15).masked_fill_(escaped, 0).to(torch.uint8), escaped


def _low_nibbles(b: torch.Tensor, k: int) -> torch.Tensor:
    return torch.stack((b & 15, b >> 4), dim=2).flatten(1)[:, :k].short()


def _to_int16(bits: torch.Tensor) -> torch.Tensor:
    """Narrow int32 holding 16 bits to int16 without relying on how an overflow wraps."""
    return (((bits & 0xFFFF) ^ 0x8000) - 0x8000).to(torch.int16)
