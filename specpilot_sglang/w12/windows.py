"""Choice of each row's exponent window, from histograms that numpy and torch both produce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specpilot_sglang.w12.spec import MAX_BASE, U8, WINDOW, ZERO_CODE_GAIN, base_bits, stored_bytes

#: Counts of weights, 32 or 64 bits wide.
Counts = NDArray[np.signedinteger]


@dataclass(frozen=True)
class Windows:
    """What the encoder uses for a matrix: `base` [N] uint8 and whether the zero code is on."""

    base: U8
    zero_code: bool


@dataclass(frozen=True)
class RowChoice:
    """Best windows of some rows without and with the zero code; every array is [rows].

    Attributes:
        plain, coded: best base without and with the zero code.
        plain_escapes, coded_escapes: escapes that it leaves.
        zeros: weights that are +-0.0.
        free: with the zero code no base codes more than another (rows of zeros only).
    """

    plain: U8
    plain_escapes: Counts
    coded: U8
    coded_escapes: Counts
    zeros: Counts
    free: np.ndarray


def row_choice(exponent: Counts, power: Counts, k: int) -> RowChoice:
    """Return the best windows of rows.

    Args:
        exponent: [rows, 256], weights of each exponent field.
        power: [rows, 256], those of them with mantissa 0; column 0 counts the zeros.
        k: weights in a row.
    """
    zeros = power[:, 0].copy()
    plain, plain_escapes = _best(_cover(exponent), k)
    nonzero, power = exponent.copy(), power.copy()
    nonzero[:, 0] -= zeros
    power[:, 0] = 0
    cover = _cover(nonzero) - power[:, : MAX_BASE + 1]
    coded, coded_escapes = _best(cover, k - zeros)
    return RowChoice(plain, plain_escapes, coded, coded_escapes, zeros, cover.max(axis=1) == 0)


def choose(choices: Sequence[RowChoice], n: int, k: int, zero_code: bool | None = None) -> tuple[Windows, int]:
    """Return the windows of a matrix, given those of its row blocks in order, and its number of zeros.

    The zero code is taken when it makes the stored matrix smaller by more than `ZERO_CODE_GAIN`
    bits per weight, or as `zero_code` says: captured graphs hold one decoder for a weight that changes.
    """
    if not choices:
        return Windows(np.zeros(n, np.uint8), bool(zero_code)), 0
    plain, coded, free = (np.concatenate([getattr(c, f) for c in choices]) for f in ("plain", "coded", "free"))
    zeros, plain_escapes, coded_escapes = (
        sum(int(getattr(c, f).sum()) for c in choices) for f in ("zeros", "plain_escapes", "coded_escapes")
    )
    if not zeros and not zero_code:
        return Windows(plain, False), 0
    # A row of zeros alone is coded by any base: the highest one in use keeps the bases close together.
    if free.any() and not free.all():
        coded[free] = coded[~free].max()
    saved = stored_bytes(n, k, plain_escapes, base_bits(plain), 2) - stored_bytes(
        n, k, coded_escapes, base_bits(coded), 2
    )
    use_code = 8 * saved > ZERO_CODE_GAIN * n * k if zero_code is None else zero_code
    return Windows(coded if use_code else plain, use_code), zeros


def _cover(exponent: Counts) -> Counts:
    """Return [rows, 241]: how many weights the window at each base covers."""
    total = np.zeros((exponent.shape[0], 257), exponent.dtype)
    np.cumsum(exponent, axis=1, out=total[:, 1:])
    return total[:, WINDOW:] - total[:, : MAX_BASE + 1]


def _best(cover: Counts, wanted: int | Counts) -> tuple[U8, Counts]:
    """Return each row's base with the largest cover, ties to the higher base, and the escapes it leaves."""
    base = MAX_BASE - np.argmax(cover[:, ::-1], axis=1)
    return base.astype(np.uint8), wanted - cover.max(axis=1)
