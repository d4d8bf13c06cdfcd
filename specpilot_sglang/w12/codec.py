"""W12 encode and decode in numpy, for files. Works on bit patterns only, never on values.

Every function takes and returns BF16 as uint16 bit patterns: comparing values would call two equal NaN
different and +0.0 equal to -0.0, and a float conversion may flush subnormals or quiet a signalling NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12.spec import U8, U16, WINDOW, W12Matrix
from specpilot_sglang.w12.windows import RowChoice, Windows, choose, row_choice

#: Weights and rows handled at a time: bound the temporaries (20 bytes a weight, 8 KB a row). CHUNK is even.
CHUNK, CHUNK_ROWS = 1 << 21, 1 << 12


def encode(bits: U16, windows: Windows | None = None) -> W12Matrix:
    """Encode a matrix of BF16 bit patterns.

    Args:
        bits: [N, K] uint16; any strides.
        windows: bases to use instead of the best ones (tests, shards of an encoded matrix).

    Returns:
        The encoded matrix; `decode` gives back the same bits for every input and every choice of windows.

    Raises:
        W12Error: `bits` is not two-dimensional uint16.
    """
    if bits.ndim != 2 or bits.dtype != np.uint16:
        raise W12Error(
            f"W12 encodes a matrix of BF16 bit patterns (uint16 [N, K]), not {bits.dtype} of {bits.ndim} dimensions",
            fix="view the BF16 tensor as uint16 and flatten all but the last dimension",
        )
    n, k = bits.shape
    best, zeros = best_windows(bits)
    chosen = windows if windows is not None else best
    a, b = np.zeros((n, k), np.uint8), np.zeros((n, -(-k // 2)), np.uint8)
    rows, cols, vals = [], [], []
    for r0, r1, c0, c1 in blocks(n, k):
        part = bits[r0:r1, c0:c1]
        coded, escaped = _codes(part, chosen.base[r0:r1], chosen.zero_code, b[r0:r1, c0 // 2 : -(-c1 // 2)])
        a[r0:r1, c0:c1] = coded
        row, col = np.nonzero(escaped)
        rows.append(row + r0)
        cols.append(col + c0)
        vals.append(part[row, col])
    row_ptr = np.zeros(n + 1, np.int64)
    if rows:
        np.cumsum(np.bincount(np.concatenate(rows), minlength=n), out=row_ptr[1:])
    return W12Matrix(
        a=a,
        b=b,
        base=chosen.base,
        row_ptr=row_ptr,
        col=np.concatenate(cols).astype(np.int64) if cols else np.zeros(0, np.int64),
        val=np.concatenate(vals) if vals else np.zeros(0, np.uint16),
        k=k,
        zero_code=chosen.zero_code,
        zeros=zeros,
    )


def decode(matrix: W12Matrix) -> U16:
    """Return the [N, K] uint16 bit patterns of an encoded matrix."""
    out = np.empty((matrix.n, matrix.k), np.uint16)
    for r0, r1, c0, c1 in blocks(matrix.n, matrix.k):
        a = matrix.a[r0:r1, c0:c1]
        low = _low_nibbles(matrix.b[r0:r1, c0 // 2 : -(-c1 // 2)], c1 - c0)
        part = _A_BITS[a]
        part += matrix.base[r0:r1, None].astype(np.uint16) << np.uint16(7)
        part |= low
        if matrix.zero_code:
            zero = ((a & 0x7F) | low) == 0
            part[zero] = (a[zero].astype(np.uint16) & 0x80) << 8
        out[r0:r1, c0:c1] = part
    out[escape_rows(matrix), matrix.col] = matrix.val
    return out


def nested8_decode(matrix: W12Matrix) -> U16:
    """Return the 8-bit view as [N, K] uint16 bit patterns: plane A and escapes above the window.

    The four missing mantissa bits are set to their mid-point 8, which leaves no bias (relative RMS error
    2.7 percent on Gaussian rows). Escapes whose exponent lies above the row's window are applied, because
    outliers matter; those below it, and zeros, keep their code's value, at most 2^-14 of the window's top.
    Exponent 255 (reached only by base 240) gets no mid-point, so infinities stay infinities.
    """
    exponent = ((matrix.a >> 3) & 15).astype(np.uint16) + matrix.base[:, None]
    out = _A_BITS[matrix.a] + (matrix.base[:, None].astype(np.uint16) << 7)
    out |= np.where(exponent == 255, 0, 8).astype(np.uint16)
    rows = escape_rows(matrix)
    above = ((matrix.val >> 7) & 0xFF) >= matrix.base[rows].astype(np.int64) + WINDOW
    out[rows[above], matrix.col[above]] = matrix.val[above]
    return out


def best_windows(bits: U16) -> tuple[Windows, int]:
    """Return the windows that suit [N, K] bit patterns best, and how many of them are +-0.0."""
    n, k = bits.shape
    choices: list[RowChoice] = []
    exponent = power = np.zeros((0, 256), np.int64)
    for r0, r1, c0, c1 in blocks(n, k):
        part = bits[r0:r1, c0:c1]
        if c0 == 0:
            exponent, power = np.zeros((r1 - r0, 256), np.int64), np.zeros((r1 - r0, 256), np.int64)
        index = ((part >> 7) & 0xFF) + (np.arange(r1 - r0, dtype=np.int32) << 8)[:, None]
        exponent += np.bincount(index.ravel(), minlength=exponent.size).reshape(-1, 256)
        power += np.bincount(index[(part & 0x7F) == 0], minlength=power.size).reshape(-1, 256)
        if c1 == k:
            choices.append(row_choice(exponent, power, k))
    return choose(choices, n, k)


def escape_rows(matrix: W12Matrix) -> np.ndarray:
    """Return the row of each escape, [E] int64."""
    return np.repeat(np.arange(matrix.n, dtype=np.int64), np.diff(matrix.row_ptr))


def blocks(n: int, k: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (row begin, row end, column begin, column end) in row-major order, at most `CHUNK` weights each."""
    rows = min(CHUNK_ROWS, max(1, CHUNK // max(1, k)))
    for r0 in range(0, n if k else 0, rows):
        for c0 in range(0, k, CHUNK):
            yield r0, min(n, r0 + rows), c0, min(k, c0 + CHUNK)


def _codes(part: U16, base: U8, zero_code: bool, b_out: U8) -> tuple[U8, np.ndarray]:
    """Return plane A of a block and the mask of escapes; write plane B into `b_out`."""
    off = ((part >> 7) & 0xFF).astype(np.uint8) - base[:, None]  # wraps around: below the window becomes large
    escaped = off >= WINDOW
    a = ((part >> 8) & 0x80).astype(np.uint8)
    sign = a.copy() if zero_code else a
    a |= (off << np.uint8(3)) & np.uint8(0x78)
    a |= ((part >> 4) & 7).astype(np.uint8)
    low = (part & 15).astype(np.uint8)
    if zero_code:
        zero = (part & 0x7FFF) == 0
        escaped |= ((a & 0x7F) | low) == 0
        escaped &= ~zero
        a[zero] = sign[zero]
    a[escaped] = 0
    low[escaped] = 0
    b_out[...] = low[:, 0::2]
    b_out[:, : part.shape[1] // 2] |= low[:, 1::2] << np.uint8(4)
    return a, escaped


def _low_nibbles(b: U8, k: int) -> U8:
    low = np.empty((b.shape[0], 2 * b.shape[1]), np.uint8)
    low[:, 0::2] = b & 15
    low[:, 1::2] = b >> 4
    return low[:, :k]


def _a_table() -> U16:
    """Return, for each plane A byte, sign and offset and upper mantissa at their BF16 positions."""
    byte = np.arange(256)
    return (((byte & 0x80) << 8) | ((byte & 0x78) << 4) | ((byte & 7) << 4)).astype(np.uint16)


_A_BITS = _a_table()
