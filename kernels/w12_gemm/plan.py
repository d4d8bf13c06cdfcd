"""Which tiling a weight gets: a function of its shape alone, so that a token's bits depend on nothing else.

Measured on an H200 (docs/measured.md): tiles that end where a CTA's share ends win most, because no partial tile is
written, counted and read again; where a weight has too few rows for that, narrow tiles shared by few CTAs win.
"""

from __future__ import annotations

from specpilot_sglang.kernels.w12_gemm.tiling import MIN_CHUNKS, UNIT_COLUMNS, UNIT_ROWS, Tiling

#: CTAs that a plan aims at: the widths of models are multiples of 128 units or close, and GPUs of interest have at
#: least as many multiprocessors.
CTAS = 128
#: Rows, in units, that one tile for each CTA may have, and above which two warps along K no longer pay.
_WIDEST, _TWO_ALONG_K = 17, 8
#: Rows, in units, of the tiles of weights with fewer rows than that.
_NARROW = 4
#: Columns up to which a weight of 64 tiles of 5 or 7 units, or of 128 of 2 units, gets these: up to 16 tokens they are
#: mostly 3 to 7 percent faster, with 64 tokens up to 5 percent slower, the more so the longer rows are.
_SHORT = 6144
#: 16 times the weights below which a multiprocessor has so little to do that tiles of one unit win.
_TINY = 1 << 18


def choose(n: int, k: int) -> Tiling:
    """Return the tiling of a weight [n, k]; `k` is a multiple of 64.

    One tile for each of about 128 CTAs where its height is 5 to 17 units; taller weights are dealt out stream-K in
    tiles of 16 units, lower ones in tiles of up to 7 units whose columns several CTAs share.
    """
    units = -(-n // UNIT_ROWS)
    rows = -(-units // CTAS)
    if rows > _WIDEST:
        return Tiling(16)
    if rows > _NARROW:
        return Tiling(rows, _along_k(k, 2 if rows <= _TWO_ALONG_K else 1), -(-units // rows))
    if units in (5 * CTAS // 2, 7 * CTAS // 2) and k <= _SHORT:
        return Tiling(2 * units // CTAS, _along_k(k, 2), CTAS)
    wk = _along_k(k, 4)
    if units == 2 * CTAS and k <= _SHORT:
        return Tiling(2, wk, CTAS)
    if units % CTAS == 0:
        return Tiling(3 if rows == 3 else _NARROW, wk, CTAS)
    if units > CTAS:
        return Tiling(_NARROW, wk)
    if units * k > _TINY:
        return Tiling(3, wk, CTAS)
    return Tiling(1, wk, units * max(1, min(k // (UNIT_COLUMNS * wk * MIN_CHUNKS), CTAS // max(1, units))))


def _along_k(k: int, most: int) -> int:
    """Return the largest power of two up to `most` whose chunks divide K."""
    while k % (UNIT_COLUMNS * most):
        most //= 2
    return most
