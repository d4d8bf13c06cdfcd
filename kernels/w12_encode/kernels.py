"""Triton source of the W12 encoder: histograms of exponents, and the planes for given windows.

A weight is read as 32-bit words of two neighbouring columns (low half = even column), so K is even here.
"""

# mypy: disable-error-code=no-untyped-def
# Triton evaluates annotations of what it compiles, so plain arguments cannot have any.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count_exponents(words, exponent, power, pairs, stride, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    """Count, for one row, the weights of each exponent field, and those of them whose mantissa is 0.

    Args:
        words: [N, pairs] int32, rows `stride` words apart.
        exponent, power: [N, 256] int32, written.
        pairs: K / 2.
        stride: of `words`.
    """
    row = tl.program_id(0).to(tl.int64)
    every = tl.zeros((256,), tl.int32)
    plain = tl.zeros((256,), tl.int32)
    for start in range(0, pairs, BLOCK):
        column = start + tl.arange(0, BLOCK)
        valid = column < pairs
        word = tl.load(words + row * stride + column, mask=valid, other=0)
        low_field, high_field = (word >> 7) & 0xFF, (word >> 23) & 0xFF
        every += tl.histogram(low_field, 256, mask=valid) + tl.histogram(high_field, 256, mask=valid)
        plain += tl.histogram(low_field, 256, mask=valid & ((word & 0x7F) == 0))
        plain += tl.histogram(high_field, 256, mask=valid & ((word & 0x7F0000) == 0))
    bins = tl.arange(0, 256)
    tl.store(exponent + row * 256 + bins, every)
    tl.store(power + row * 256 + bins, plain)


@triton.jit
def _code(bits, base, ZERO_CODE: tl.constexpr):  # noqa: ANN001, ANN202
    """Return plane A's byte, plane B's nibble and whether these 16-bit patterns are escapes."""
    off = ((bits >> 7) & 0xFF) - base
    code, low = (off << 3) | ((bits >> 4) & 7), bits & 15
    escaped = (off < 0) | (off >= 16)
    if ZERO_CODE:
        zero = (bits & 0x7FFF) == 0
        escaped = (escaped | ((code | low) == 0)) & (zero == 0)
        code = tl.where(zero, 0, code)
    byte = tl.where(escaped, 0, ((bits >> 8) & 0x80) | code)
    return byte, tl.where(escaped, 0, low), escaped


@triton.jit
def write_planes(  # noqa: ANN201
    words,  # noqa: ANN001
    base,  # noqa: ANN001
    a,  # noqa: ANN001
    b,  # noqa: ANN001
    escaped,  # noqa: ANN001
    pairs,  # noqa: ANN001
    stride,  # noqa: ANN001
    ZERO_CODE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write plane A and the escape flags, one int16 for two columns, and plane B, one byte for two columns.

    Args:
        words: [N, pairs] int32, rows `stride` words apart.
        base: [N] uint8.
        a, escaped: [N, pairs] int16.
        b: [N, pairs] uint8.
        pairs: K / 2.
        stride: of `words`.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = column < pairs
    word = tl.load(words + row * stride + column, mask=valid, other=0)
    lowest = tl.load(base + row).to(tl.int32)
    byte0, low0, escaped0 = _code(word & 0xFFFF, lowest, ZERO_CODE)
    byte1, low1, escaped1 = _code((word >> 16) & 0xFFFF, lowest, ZERO_CODE)
    place = row * pairs + column
    tl.store(a + place, (byte0 | (byte1 << 8)).to(tl.int16), mask=valid)
    tl.store(b + place, (low0 | (low1 << 4)).to(tl.uint8), mask=valid)
    tl.store(escaped + place, (escaped0.to(tl.int32) | (escaped1.to(tl.int32) << 8)).to(tl.int16), mask=valid)
