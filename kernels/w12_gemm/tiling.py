"""How the kernel cuts a weight into tiles, chunks and units, and deals chunks out to CTAs (stream-K).

Everything here depends on the weight's shape and on the GPU, never on the number of tokens or on the decoder:
that is what makes a token's result independent of what stands beside it (exactness level L3), and equal for W12
and for the same weight in plain BF16 (L2).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from specpilot_sglang.errors import W12Error

#: Rows and columns of a unit: what one warp decodes at a time, one escape word each.
UNIT_ROWS, UNIT_COLUMNS = 16, 64
#: Tokens of the widest kernel; more tokens than this take decode + cuBLAS.
MAX_TOKENS = 64
#: Fewest chunks a CTA gets: below it, summing partial tiles costs more than idle multiprocessors.
MIN_CHUNKS = 4


class Decoder(IntEnum):
    """What the weight stream holds; values as in decode.cuh."""

    BF16 = 0
    W12 = 1
    NESTED8 = 2
    W12_ZERO = 3


@dataclass(frozen=True)
class Tiling:
    """Shape of a tile, and how many CTAs share a multiprocessor.

    Attributes:
        wn, wk: consumer warps along N and along K.
        mt: units a warp has along N.
        ku: units of a chunk along K; a multiple of `wk`.
        ctas_per_sm: CTAs of one launch on a multiprocessor.
        shared_parts: a CTA takes 1 / `shared_parts` of a multiprocessor's shared memory. With more parts than
            CTAs, the next launch's CTAs fit beside them and prefetch while this one ends.

    The defaults are the fastest of the tilings whose exactness was tested on an H200.
    """

    wn: int = 8
    wk: int = 1
    mt: int = 1
    ku: int = 1
    ctas_per_sm: int = 1
    shared_parts: int = 2

    @property
    def tile_rows(self) -> int:
        """Rows of the weight in a tile."""
        return UNIT_ROWS * self.row_units

    @property
    def row_units(self) -> int:
        """Units in a tile along N."""
        return self.wn * self.mt

    @property
    def chunk_columns(self) -> int:
        """Columns of the weight in a chunk; K must be a multiple."""
        return UNIT_COLUMNS * self.ku

    @property
    def threads(self) -> int:
        """Threads of a CTA: consumer warps and one producer warp."""
        return 32 * (self.wn * self.wk + 1)

    def tiles(self, n: int) -> int:
        """Return the number of tiles along N."""
        return -(-n // self.tile_rows)

    def chunks(self, k: int) -> int:
        """Return the number of chunks along K.

        Raises:
            W12Error: K is not a multiple of the chunk.
        """
        if k % self.chunk_columns:
            raise W12Error(
                f"the W12 kernel needs K to be a multiple of {self.chunk_columns}, not {k}",
                fix="this layer takes the decode path",
            )
        return k // self.chunk_columns


@dataclass(frozen=True)
class Shared:
    """Shared memory of a CTA: `stages` stages of `stage` bytes, and `total` bytes in all."""

    stages: int
    stage: int
    total: int


def shared_memory(tiling: Tiling, decoder: Decoder, token_eights: int, limit: int, most: int = 32) -> Shared:
    """Return the stages that fit into `limit` bytes (mirrors the constants of w12_gemm.cu).

    Raises:
        W12Error: fewer than two stages fit.
    """
    units = tiling.row_units * tiling.ku
    a = 2048 if decoder == Decoder.BF16 else 1024
    b = 512 if decoder in (Decoder.W12, Decoder.W12_ZERO) else 0
    e = 0 if decoder == Decoder.BF16 else 4
    x = 1024 * token_eights * tiling.ku
    stage = -(-(x + units * (a + b + e)) // 1024) * 1024
    reduce = (tiling.wk - 1) * tiling.wn * tiling.mt * token_eights * 512
    stages = min(most, (limit - reduce) // (stage + 16))
    if stages < 2:
        raise W12Error(f"{limit} bytes of shared memory do not hold two stages of {stage} bytes", fix="smaller tiles")
    return Shared(stages, stage, reduce + stages * (stage + 16))


def grid(tiling: Tiling, n: int, k: int, multiprocessors: int) -> int:
    """Return the number of CTAs for a weight: one wave, fewer for small weights.

    Raises:
        W12Error: K is not a multiple of the chunk, or the weight is too large for the kernel's 32-bit positions.
    """
    work = tiling.tiles(n) * tiling.chunks(k)
    ctas = max(1, min(multiprocessors * tiling.ctas_per_sm, work // MIN_CHUNKS))
    if work * (ctas + 1) >= 1 << 32:
        raise W12Error(f"[{n}, {k}] is too large for the W12 kernel", fix="this layer takes the decode path")
    return ctas
