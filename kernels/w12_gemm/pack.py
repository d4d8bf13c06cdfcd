"""Row-major planes to the kernel's fragment order, at load time, on the weight's own device.

A weight is stored [tile along N][chunk along K][16-row unit][64-column unit][unit]. Inside a unit, lane 4 * g + t
holds rows g and g + 8 and, of each k16 step, columns 2 * t, 2 * t + 1, 2 * t + 8 and 2 * t + 9: the A fragment of
`mma` and of `wgmma`, columns of x in their natural order. Names of the axes below:
r (row / 8 in a unit), g, u (64-column unit), h (half), s (k16 step), p (register pair), t, e (lower or upper lane).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specpilot_sglang.errors import W12Error
from specpilot_sglang.kernels.w12_gemm.tiling import UNIT_COLUMNS, UNIT_ROWS, Decoder, Tiling
from specpilot_sglang.w12.codec_torch import W12Tensor, escape_rows
from specpilot_sglang.w12.spec import MAX_BASE, WINDOW

#: Weights repacked at a time; bounds the temporaries to about 10 bytes each.
BLOCK = 1 << 24


@dataclass(frozen=True)
class PackedWeight:
    """A weight [n, k] in fragment order on one device.

    Attributes:
        a: plane A, or BF16 when `decoder` is BF16; uint8, whole tiles.
        b: plane B, uint8; empty for BF16.
        base: [padded n] uint8, lowest exponent of each row's window.
        escape, escapes: words of the units, and the lists of those with more than one escape; int32.
        escape8, escapes8: the same for the nested 8-bit view.
        decoder: BF16, W12 or W12_ZERO; W12 weights also serve NESTED8.
    """

    a: torch.Tensor
    b: torch.Tensor
    base: torch.Tensor
    escape: torch.Tensor
    escapes: torch.Tensor
    escape8: torch.Tensor
    escapes8: torch.Tensor
    n: int
    k: int
    tiling: Tiling
    decoder: Decoder

    @property
    def linger_ns(self) -> int:
        """Nanoseconds that a CTA without work stays: half of what the kernel takes at 4.5 TB/s."""
        return self.a.numel() // 6000

    @property
    def nbytes(self) -> int:
        """Bytes of device memory it holds."""
        tensors = (self.a, self.b, self.base, self.escape, self.escapes, self.escape8, self.escapes8)
        return sum(t.numel() * t.element_size() for t in tensors)

    def stream_bytes(self, decoder: Decoder) -> int:
        """Return the bytes of weights a call reads from memory."""
        if decoder == Decoder.BF16:
            return self.a.numel()
        if decoder == Decoder.NESTED8:
            return self.a.numel() + 4 * (self.escape8.numel() + self.escapes8.numel()) + self.base.numel()
        return self.a.numel() + self.b.numel() + 4 * (self.escape.numel() + self.escapes.numel()) + self.base.numel()


def pack(weight: W12Tensor, tiling: Tiling, *, spare: bool = False) -> PackedWeight:
    """Return an encoded matrix in fragment order, with `spare` room for a third more escapes.

    Raises:
        W12Error: K is not a multiple of the tiling's chunk.
    """
    chunks = tiling.chunks(weight.k)
    a = _by_tiles(weight.a, tiling, lambda part: _plane_a(part, tiling, chunks))
    b = _by_tiles(weight.b, tiling, lambda part: _plane_b(part, tiling, chunks))
    base = _pad_rows(weight.base, tiling)
    units = tiling.tiles(weight.n) * chunks * tiling.words
    exact = _escape_words(escape_rows(weight), weight.col, weight.val, units, tiling, chunks)
    view = _escape_words(*_nested_escapes(weight), units, tiling, chunks)
    if spare:
        exact, view = ((words, _with_room(lists)) for words, lists in (exact, view))
    decoder = Decoder.W12_ZERO if weight.zero_code else Decoder.W12
    _settle(a)
    return PackedWeight(a, b, base, *exact, *view, weight.n, weight.k, tiling, decoder)


def pack_bf16(weight: torch.Tensor, tiling: Tiling) -> PackedWeight:
    """Return a BF16 matrix [N, K] in fragment order, for the pass-through decoder.

    Raises:
        W12Error: not BF16, or K is not a multiple of the tiling's chunk.
    """
    if weight.dtype != torch.bfloat16 or weight.dim() != 2:
        raise W12Error(f"expected a BF16 matrix, not {weight.dtype} of shape {tuple(weight.shape)}")
    n, k = weight.shape
    chunks = tiling.chunks(k)
    a = _by_tiles(weight.contiguous().view(torch.int16), tiling, lambda part: _plane_bf16(part, tiling, chunks))
    _settle(a)
    none, words = a.new_zeros(0), torch.zeros(0, dtype=torch.int32, device=weight.device)
    return PackedWeight(a, none, none, words, words, words, words, n, k, tiling, Decoder.BF16)


def _settle(packed: torch.Tensor) -> None:
    """Wait until the weight is in memory: the kernel prefetches it while the kernel before it still runs."""
    if packed.is_cuda:
        torch.cuda.current_stream(packed.device).synchronize()


def _by_tiles(rows: torch.Tensor, tiling: Tiling, repack: object) -> torch.Tensor:
    """Apply `repack` to blocks of whole tiles and return the result as one flat uint8 tensor."""
    step = max(1, BLOCK // max(1, tiling.tile_rows * rows.shape[1])) * tiling.tile_rows
    parts = []
    for begin in range(0, rows.shape[0], step):
        part = _pad_rows(rows[begin : begin + step], tiling)
        parts.append(repack(part).contiguous().view(torch.uint8).flatten())  # type: ignore[operator]
    return torch.cat(parts)


def _pad_rows(rows: torch.Tensor, tiling: Tiling) -> torch.Tensor:
    missing = -rows.shape[0] % tiling.tile_rows
    return torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:]))) if missing else rows.contiguous()


def _plane_a(a: torch.Tensor, tiling: Tiling, chunks: int) -> torch.Tensor:
    """Return int16 [T, C, units, u, h, g, t, s, r, e]: pair 0 in place, pair 1 in the bits pair 0 leaves free."""
    wide = a.view(-1, tiling.rows, 2, 8, chunks, tiling.wk, 2, 2, 2, 4, 2).int()  # T n r g C u h s p t e
    wide = wide.permute(8, 0, 4, 1, 5, 6, 3, 9, 7, 2, 10)  # p | T C n u h g t s r e
    bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 4)
    second = bits[1]
    word = bits[0] | ((second >> 4) & 0x080F) | ((second << 4) & 0x7000)
    return ((word ^ 0x8000) - 0x8000).to(torch.int16)


def _plane_b(b: torch.Tensor, tiling: Tiling, chunks: int) -> torch.Tensor:
    """Return uint8 [T, C, units, u, g, t, h, s, e, p]: low nibble row g, high nibble row g + 8."""
    wide = b.view(-1, tiling.rows, 2, 8, chunks, tiling.wk, 2, 2, 2, 4)  # T n r g C u h s p t
    wide = wide.permute(2, 0, 4, 1, 5, 3, 9, 6, 7, 8)  # r | T C n u g t h s p
    low, high = wide[0], wide[1]
    return torch.stack(((low & 15) | (high << 4), (low >> 4) | (high & 0xF0)), dim=-2)


def _plane_bf16(bits: torch.Tensor, tiling: Tiling, chunks: int) -> torch.Tensor:
    """Return int16 [T, C, units, u, h, s, g, t, p, r, e]."""
    wide = bits.view(-1, tiling.rows, 2, 8, chunks, tiling.wk, 2, 2, 2, 4, 2)  # T n r g C u h s p t e
    return wide.permute(0, 4, 1, 5, 6, 7, 3, 9, 8, 2, 10)


def _nested_escapes(weight: W12Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return row, column and bits of what the 8-bit view takes from a list.

    Escapes above the row's window, and codes of exponent 255 (base 240 only), which get no mid-point.
    """
    rows = escape_rows(weight)
    above = ((weight.val.int() >> 7) & 0xFF) >= weight.base[rows].int() + WINDOW
    rows, cols, vals = rows[above], weight.col[above], weight.val[above]
    top = (weight.base == MAX_BASE).nonzero().flatten()
    if top.numel():
        codes = weight.a[top].int()
        where, col = ((codes & 0x78) == 0x78).nonzero(as_tuple=True)
        code = codes[where, col]
        bits = ((code & 0x80) << 8) | 0x7F80 | ((code & 7) << 4)
        rows, cols = torch.cat((rows, top[where])), torch.cat((cols, col))
        vals = torch.cat((vals, ((bits ^ 0x8000) - 0x8000).to(torch.int16)))
    return rows, cols, vals


def _escape_words(
    row: torch.Tensor, col: torch.Tensor, val: torch.Tensor, units: int, tiling: Tiling, chunks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the word of each unit (`tiling.words` a chunk), and lists of those with several escapes; both int32."""
    tile, chunk = row // tiling.tile_rows, col // tiling.chunk_columns
    unit = row % tiling.tile_rows // UNIT_ROWS * tiling.wk + col % tiling.chunk_columns // UNIT_COLUMNS
    unit += (tile * chunks + chunk) * tiling.words
    lane = row % 8 * 4 + col // 2 % 4
    register = col // 32 % 2 * 8 + col // 16 % 2 * 4 + col // 8 % 2 * 2 + row // 8 % 2
    place = lane | register << 5 | col % 2 << 9
    unit, order = unit.sort(stable=True)
    entry = ((val.long() & 0xFFFF) << 16 | place)[order]
    unique, count = torch.unique_consecutive(unit, return_counts=True)
    first = count.cumsum(0) - count
    many = count > 1
    size = torch.where(many, count + 1, 0)
    begin = size.cumsum(0) - size
    word = torch.where(many, begin << 2 | 2, (entry[first] & 0xFFFF0000) | (entry[first] & 0xFFFF) << 2 | 1)
    words = torch.zeros(units, dtype=torch.int64, device=row.device)
    words[unique] = word
    lists = torch.zeros(int(size.sum()), dtype=torch.int64, device=row.device)
    lists[begin[many]] = count[many]
    inside = torch.repeat_interleave(many, count)
    offset = torch.repeat_interleave(begin + 1 - first, count) + torch.arange(unit.numel(), device=row.device)
    lists[offset[inside]] = entry[inside]
    if lists.numel() >= 1 << 30:
        raise W12Error(f"{row.numel()} escapes are too many for the W12 kernel", fix="keep this tensor BF16")
    return _wrap(words), _wrap(lists)


def _with_room(lists: torch.Tensor) -> torch.Tensor:
    return torch.cat((lists, lists.new_zeros(lists.numel() // 3 + 1024)))


def _wrap(word: torch.Tensor) -> torch.Tensor:
    return ((word ^ 0x80000000) - 0x80000000).to(torch.int32)
