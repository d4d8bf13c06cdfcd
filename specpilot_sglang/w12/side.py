"""The side blob: everything of a packed tensor but its two planes, self-describing, in one byte string.

Little-endian, in this order (`spec.side_bytes` gives the size):

    magic "W12S", version u8, flags u8 (bit 0: zero code), base bits u8 (4 or 8), column bytes u8 (2 or 4)
    top base u8, number of dimensions u8, reserved u16
    escapes u64, zeros u64, SHA-256 of the original bytes (32)
    shape u64 x ndim
    escape pointers i64 x (ceil(N / 128) + 1)     first escape of each block of 128 rows
    escape columns u16 or u32, escape values u16, escape rows u8 (inside their block)
    bases: u8 x N, or nibbles `top - base`, low nibble = even row
    zero padding, so that planes and blob together fill a multiple of 16 bytes

Being self-describing, a packed tensor decodes from its three parts alone, whichever loader delivers them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12.spec import (
    FORMAT_VERSION,
    MAX_BASE,
    MAX_COLUMNS,
    ROW_BLOCK,
    SIDE_HEADER_BYTES,
    U8,
    W12Matrix,
    base_bits,
    col_bytes,
    matrix_shape,
    stored_bytes,
)

MAGIC = b"W12S"
_FIXED = struct.Struct("<4sBBBBBBHQQ32s")
assert _FIXED.size == SIDE_HEADER_BYTES


@dataclass(frozen=True)
class SideHeader:
    """The fixed part of a side blob: the original tensor's shape and hash, and how to read the rest."""

    shape: tuple[int, ...]
    sha256: bytes
    zero_code: bool
    zeros: int
    escapes: int
    base_bits: int
    base_top: int

    @property
    def matrix(self) -> tuple[int, int]:
        """(N, K)."""
        return matrix_shape(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes of planes, blob and padding."""
        return stored_bytes(*self.matrix, self.escapes, self.base_bits, len(self.shape))


def dump(matrix: W12Matrix, shape: tuple[int, ...], sha256: bytes) -> bytes:
    """Serialise all of `matrix` but its planes, padding included."""
    n, k = matrix_shape(shape)
    bits = base_bits(matrix.base)
    top = int(matrix.base.max(initial=0))
    head = _FIXED.pack(
        MAGIC,
        FORMAT_VERSION,
        int(matrix.zero_code),
        bits,
        col_bytes(k),
        top,
        len(shape),
        0,
        matrix.escapes,
        matrix.zeros,
        sha256,
    )
    rows = np.repeat(np.arange(n, dtype=np.int64), np.diff(matrix.row_ptr))
    pointers = matrix.row_ptr[np.minimum(np.arange(-(-n // ROW_BLOCK) + 1) * ROW_BLOCK, n)]
    parts = (
        head,
        np.asarray(shape, "<u8").tobytes(),
        pointers.astype("<i8").tobytes(),
        matrix.col.astype(f"<u{col_bytes(k)}").tobytes(),
        matrix.val.astype("<u2").tobytes(),
        (rows % ROW_BLOCK).astype(np.uint8).tobytes(),
        _pack_bases(matrix.base, top, bits).tobytes(),
    )
    body = b"".join(parts)
    return body.ljust(stored_bytes(n, k, matrix.escapes, bits, len(shape)) - n * k - n * (-(-k // 2)), b"\0")


def read_header(blob: bytes | memoryview, where: str) -> SideHeader:
    """Parse and check the fixed part; `where` names file and tensor in errors.

    Raises:
        W12Error: not a side blob, another format version, or a size that does not fit.
    """
    if len(blob) < SIDE_HEADER_BYTES or bytes(blob[:4]) != MAGIC:
        raise _damaged("its side data does not start with the W12 mark", where)
    _, version, flags, bits, cols, top, ndim, _, escapes, zeros, sha = _FIXED.unpack(bytes(blob[:SIDE_HEADER_BYTES]))
    if version != FORMAT_VERSION:
        raise W12Error(
            f"W12 format version {version} is not the version {FORMAT_VERSION} that this release reads",
            where=where,
            fix="install the specpilot-sglang release that packed it, or pack the original again",
        )
    stored = bytes(blob[SIDE_HEADER_BYTES : SIDE_HEADER_BYTES + 8 * ndim])
    shape = tuple(np.frombuffer(stored, "<u8").tolist()) if len(stored) == 8 * ndim >= 16 else ()
    if not shape or shape[-1] > MAX_COLUMNS or bits not in (4, 8) or top > MAX_BASE or flags > 1:
        raise _damaged("its side header is not valid", where)
    header = SideHeader(shape, sha, bool(flags), zeros, escapes, bits, top)
    n, k = header.matrix
    expected = header.stored_bytes - n * k - n * (-(-k // 2))
    if cols != col_bytes(k) or escapes > n * k or len(blob) != expected:
        raise _damaged(f"its side data has {len(blob)} bytes, its header means {expected}", where)
    return header


def load(a: U8, b: U8, blob: bytes | memoryview, where: str) -> tuple[W12Matrix, SideHeader]:
    """Rebuild the encoded matrix from its stored parts.

    Args:
        a: plane A, uint8 of N * K elements in any shape.
        b: plane B, uint8 of N * ceil(K / 2) elements.
        blob: the side blob.
        where: file and tensor, for errors.

    Raises:
        W12Error: parts that do not belong together or an escape list that is not sorted and in range.
    """
    header = read_header(blob, where)
    n, k = header.matrix
    if a.size != n * k or b.size != n * (-(-k // 2)):
        raise _damaged(f"its planes have {a.size} and {b.size} bytes, its shape is {list(header.shape)}", where)
    at = SIDE_HEADER_BYTES + 8 * len(header.shape)
    sections = []
    for dtype, count in (
        ("<i8", -(-n // ROW_BLOCK) + 1),
        (f"<u{col_bytes(k)}", header.escapes),
        ("<u2", header.escapes),
        ("u1", header.escapes),
        ("u1", -(-n * header.base_bits // 8)),
    ):
        sections.append(np.frombuffer(blob, dtype, count, at))
        at += sections[-1].nbytes
    pointers, col, val, row, bases = sections
    base = _unpack_bases(bases, header, where)
    row_ptr = _row_ptr(pointers, row, n, header.escapes, where)
    _check_columns(row_ptr, col, k, where)
    matrix = W12Matrix(
        a=a.reshape(n, k),
        b=b.reshape(n, -(-k // 2)),
        base=base,
        row_ptr=row_ptr,
        col=col.astype(np.int64),
        val=val.astype(np.uint16),
        k=k,
        zero_code=header.zero_code,
        zeros=header.zeros,
    )
    return matrix, header


def _row_ptr(pointers: np.ndarray, row: np.ndarray, n: int, escapes: int, where: str) -> np.ndarray:
    counts = np.diff(pointers)
    if pointers[0] != 0 or pointers[-1] != escapes or (counts < 0).any():
        raise _damaged("its escape pointers are not a rising sequence", where)
    rows = np.repeat(np.arange(counts.size, dtype=np.int64) * ROW_BLOCK, counts) + row
    if (np.diff(rows) < 0).any() or (row >= ROW_BLOCK).any() or (rows >= n).any():
        raise _damaged("its escape rows are out of order or out of range", where)
    row_ptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=n), out=row_ptr[1:])
    return row_ptr


def _check_columns(row_ptr: np.ndarray, col: np.ndarray, k: int, where: str) -> None:
    step = np.diff(col.astype(np.int64))
    starts = row_ptr[1:-1]
    starts = starts[(starts > 0) & (starts < col.size)]
    step[starts - 1] = 1  # the first escape of a row may lie left of the previous row's last one
    if (step <= 0).any() or (col >= k).any():
        raise _damaged("its escape columns are out of order or out of range", where)


def _pack_bases(base: U8, top: int, bits: int) -> U8:
    if bits == 8:
        return base
    below = np.zeros(base.size + base.size % 2, np.uint8)
    below[: base.size] = np.uint8(top) - base
    packed: U8 = below[0::2] | (below[1::2] << np.uint8(4))
    return packed


def _unpack_bases(stored: U8, header: SideHeader, where: str) -> U8:
    n = header.matrix[0]
    if header.base_bits == 8:
        base = stored.copy()
    else:
        below = np.stack((stored & 15, stored >> 4), axis=1).ravel()[:n]
        if (below > header.base_top).any():
            raise _damaged("a row base lies below 0", where)
        base = np.uint8(header.base_top) - below
    if (base > MAX_BASE).any():
        raise _damaged("a row base lies above 240", where)
    return base.astype(np.uint8)


def _damaged(what: str, where: str) -> W12Error:
    return W12Error(f"the packed tensor is damaged: {what}", where=where, fix="pack the original again")
