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
#: Consumer warps of a CTA up to which, with 25 to 32 tokens, two CTAs that multiply by `mma` are faster on a
#: multiprocessor than one that does by `wgmma`.
FEW_WARPS = 10
#: Fewest chunks a CTA gets: below it, summing partial tiles costs more than idle multiprocessors.
MIN_CHUNKS = 4


class Decoder(IntEnum):
    """What the weight stream holds; values as in decode.cuh."""

    BF16 = 0
    W12 = 1
    NESTED8 = 2
    W12_ZERO = 3


#: Bytes of a unit's planes.
UNIT_BYTES = {Decoder.BF16: 2048, Decoder.W12: 1536, Decoder.NESTED8: 1024, Decoder.W12_ZERO: 1536}


@dataclass(frozen=True)
class Tiling:
    """Shape of a tile, and how many CTAs share the work.

    The first three decide which sums are formed and in which order; they depend on the weight's shape only.

    Attributes:
        rows: 16-row units of a tile along N, one warp each.
        wk: 64-column units of a chunk along K, each summed by warps of its own.
        ctas: CTAs with work; 0 is one for each multiprocessor. A number that cuts tiles x chunks at tiles' ends (or the
            tiles into equal parts) saves summing partial tiles (or waiting for the last part).
        shared_parts: a CTA takes 1 / `shared_parts` of a multiprocessor's shared memory in the kernels for up to 16
            tokens. With more than one part, the next launch's CTAs fit beside this one's and prefetch while it ends.
        wgmma: kernels for at least so many token eights multiply by `wgmma`; 0: those that were measured to be faster.
    """

    rows: int = 16
    wk: int = 1
    ctas: int = 0
    shared_parts: int = 2
    wgmma: int = 0

    def warps(self, token_eights: int, *, wgmma: bool) -> int:
        """Return the consumer warps along N: one for each row unit.

        `wgmma` needs four units at a time; `mma` takes those left over, but three of them with 33 tokens and more are
        faster with a fourth warp that has no unit.
        """
        return self.rows + 1 if wgmma and token_eights == 8 and self.rows % 4 == 3 else self.rows

    def threads(self, token_eights: int, *, wgmma: bool) -> int:
        """Return the threads of a CTA: consumer warps and one producer warp."""
        return 32 * (self.warps(token_eights, wgmma=wgmma) * self.wk + 1)

    @property
    def wgmma_from(self) -> int:
        """Token eights of the narrowest kernel that multiplies by `wgmma`."""
        return self.wgmma or (8 if self.rows * self.wk <= FEW_WARPS else 4)

    def parts(self, token_eights: int) -> int:
        """Return the parts of a multiprocessor, one for each CTA, in the kernel for `token_eights`.

        Kernels for 25 tokens and more need more registers than half a multiprocessor has for many warps.
        """
        if token_eights < 4:
            return self.shared_parts
        return 2 if token_eights == 4 and self.rows * self.wk <= FEW_WARPS else 1

    @property
    def tile_rows(self) -> int:
        """Rows of the weight in a tile."""
        return UNIT_ROWS * self.rows

    @property
    def words(self) -> int:
        """Escape words of a chunk: one a unit, padded to 16 bytes."""
        return -(-self.rows * self.wk // 4) * 4

    @property
    def chunk_columns(self) -> int:
        """Columns of the weight in a chunk; K must be a multiple."""
        return UNIT_COLUMNS * self.wk

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
    units = tiling.rows * tiling.wk
    a = 2048 if decoder == Decoder.BF16 else 1024
    b = 512 if decoder in (Decoder.W12, Decoder.W12_ZERO) else 0
    e = 0 if decoder == Decoder.BF16 else 4 * tiling.words
    x = 1024 * token_eights * tiling.wk
    stage = -(-(x + units * (a + b) + e) // 1024) * 1024
    reduce = (tiling.wk - 1) * tiling.warps(8, wgmma=True) * token_eights * 512
    stages = min(most, (limit - reduce) // (stage + 16))
    if stages < 2:
        raise W12Error(f"{limit} bytes of shared memory do not hold two stages of {stage} bytes", fix="smaller tiles")
    return Shared(stages, stage, reduce + stages * (stage + 16))


def fitting_shared(tiling: Tiling, decoder: Decoder, token_eights: int, multiprocessor: int, block: int) -> Shared:
    """Return the shared memory of a kernel on a GPU: a part of a multiprocessor's, or all if that holds no two stages.

    Args:
        tiling, decoder, token_eights: which kernel.
        multiprocessor, block: usable bytes of a multiprocessor, and the most a CTA may have.

    Raises:
        W12Error: fewer than two stages fit at all.
    """
    try:
        limit = min(block, multiprocessor // tiling.parts(token_eights))
        return shared_memory(tiling, decoder, token_eights, limit)
    except W12Error:
        return shared_memory(tiling, decoder, token_eights, min(block, multiprocessor))


def grid(tiling: Tiling, n: int, k: int, multiprocessors: int) -> int:
    """Return the number of CTAs for a weight: one wave, fewer for small weights.

    Raises:
        W12Error: K is not a multiple of the chunk, or the weight is too large for the kernel's 32-bit positions.
    """
    work = tiling.tiles(n) * tiling.chunks(k)
    if work >= 1 << 31:
        raise W12Error(f"[{n}, {k}] is too large for the W12 kernel", fix="this layer takes the decode path")
    return max(1, min(tiling.ctas or multiprocessors, work // MIN_CHUNKS))
