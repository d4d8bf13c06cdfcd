"""The W12 format: constants, the encoded matrix, and the size of what is stored.

A BF16 weight is sign (1 bit), exponent (8), mantissa (7). Inside one row of a trained matrix nearly all
exponents fall into 16 consecutive values, so W12 keeps `exponent - base[row]` in 4 bits:

    plane A [N, K] uint8             s | off4 | m6 m5 m4
    plane B [N, ceil(K/2)] uint8     m3..m0, low nibble = even column

What has no code is an escape: its code is 0 (a placeholder) and its 16 bits stand in a list sorted by row,
then column. The base of a row is the one for which most of its weights have a code; ties take the higher
base, which keeps large weights in and gives up tiny ones.

The zero code. Exact zeros lie outside every window of a trained row (their exponent field is 0), and
dequantised or pruned tensors hold many. In a tensor with `zero_code` the two codes off4 = 0, m = 0 mean +0.0
and -0.0, and the weights +-2^(base - 127) that they otherwise stand for are escapes: about one in a million
weights pays for all zeros being free. A list of zero positions, however compact, would cost bits for each
zero, and a kernel would have to look it up in its inner loop to be bit-identical to BF16; the zero code is a
compare with a constant in the decoder, of a kernel variant that only tensors with zeros use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FORMAT_VERSION = 1
PLANE_ORDER = "row-major; A=s|off4|m6m5m4; B=m3..m0, low nibble even column"
BASE_DTYPE = "BF16"

#: Consecutive exponents one row can code, and the highest base (240 + 15 = 255, infinities and NaN).
WINDOW, MAX_BASE = 16, 240
#: Most columns that a stored column index can tell apart.
MAX_COLUMNS = 1 << 32
#: Rows that share one pointer into the escape list; the row inside its block is stored in one byte.
ROW_BLOCK = 128
#: Bits per weight above which a tensor stays BF16.
DEFAULT_MAX_BITS = 12.25
#: Bits per weight the zero code must save before a tensor uses it: the plain decoder is one operation shorter.
ZERO_CODE_GAIN = 1 / 256
#: Bytes of the side blob's fixed header, without the shape.
SIDE_HEADER_BYTES = 60
#: A, B and side blob of one tensor together take a multiple of this many bytes in a file.
ALIGNMENT = 16

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class W12Matrix:
    """One encoded matrix of N rows and K columns.

    Attributes:
        a: [N, K] uint8, plane A. It alone is the nested 8-bit view.
        b: [N, ceil(K/2)] uint8, plane B.
        base: [N] uint8, lowest exponent field of each row's window, 0..240.
        row_ptr: [N + 1] int64, escapes of row r are `row_ptr[r]:row_ptr[r + 1]`.
        col: [E] int64, column of each escape, ascending inside a row.
        val: [E] uint16, exact bits of each escape.
        k: number of columns (plane B alone does not tell an odd K).
        zero_code: codes off4 = 0, m = 0 mean +-0.0.
        zeros: how many weights are exactly +-0.0.
    """

    a: U8
    b: U8
    base: U8
    row_ptr: I64
    col: I64
    val: U16
    k: int
    zero_code: bool
    zeros: int = 0

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.base.shape[0])

    @property
    def escapes(self) -> int:
        """Number of escaped weights."""
        return int(self.col.shape[0])

    @property
    def worst_row(self) -> int:
        """Most escapes in one row."""
        return int(np.diff(self.row_ptr).max(initial=0))

    @property
    def base_bits(self) -> int:
        """Bits a row's base takes when stored: 4 when all bases lie within 15 of the highest."""
        return base_bits(self.base)

    def bits_per_weight(self, ndim: int = 2) -> float:
        """Stored bits over N * K: planes, bases, pointers, escapes, header, hash and padding."""
        return 8 * stored_bytes(self.n, self.k, self.escapes, self.base_bits, ndim) / max(1, self.n * self.k)


def base_bits(base: U8) -> int:
    """Return 4 when every base is within 15 of the highest one, else 8."""
    return 4 if base.size == 0 or int(base.max()) - int(base.min()) < WINDOW else 8


def col_bytes(k: int) -> int:
    """Return the bytes of a stored column index: 2 up to 65,536 columns, 4 beyond."""
    if k > MAX_COLUMNS:
        raise OverflowError(f"K = {k} does not fit the 32-bit column index of W12")
    return 2 if k <= 1 << 16 else 4


def side_bytes(n: int, k: int, escapes: int, bits: int, ndim: int) -> int:
    """Return the unpadded size of a tensor's side blob in bytes."""
    pointers = 8 * (-(-n // ROW_BLOCK) + 1)
    return SIDE_HEADER_BYTES + 8 * ndim + pointers + escapes * (col_bytes(k) + 3) + -(-n * bits // 8)


def stored_bytes(n: int, k: int, escapes: int, bits: int, ndim: int) -> int:
    """Return all bytes a packed tensor takes in a file's data section, padding included."""
    total = n * k + n * (-(-k // 2)) + side_bytes(n, k, escapes, bits, ndim)
    return -(-total // ALIGNMENT) * ALIGNMENT


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (N, K) of a tensor: K is the last dimension, N the product of the others."""
    return math.prod(shape[:-1]), shape[-1]
