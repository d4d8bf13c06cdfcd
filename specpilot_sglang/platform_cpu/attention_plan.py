"""Which KV slots and which mask a group of equally long query blocks reads in one forward pass."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class BlockPlan:
    """`batch` requests with `width` query rows each, over padded key/value rows.

    Attributes:
        start: first row of this group in the flat query tensor.
        batch: number of requests.
        width: query rows of each request; they are its last `width` key positions.
        kv_lens: int64 [batch], keys each request sees in all (its prefix plus `width`).
        slots: int64 [batch * kv_max] KV-pool rows, or a slice where they are consecutive (batch 1 only).
            Padding repeats the request's first slot, which always holds finite values.
        custom: bool [batch, width, kv_max], True where a query may see a key (a draft tree), or None.
        positions: int64 [batch, width] positions of the query rows, needed only for windows under `custom`.
    """

    start: int
    batch: int
    width: int
    kv_lens: torch.Tensor
    slots: torch.Tensor | slice
    custom: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    kv_max: int = 0
    padded: bool = False
    _masks: dict[tuple[bool, int, int, torch.dtype], torch.Tensor | None] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Query rows of the whole group."""
        return self.batch * self.width

    def is_plain_causal(self, causal: bool, window: int) -> bool:
        """Whether torch's own top-left causal flag is exact: one request without prefix, mask or window."""
        return causal and self.custom is None and window < 0 and self.batch == 1 and self.kv_max == self.width

    def mask(self, causal: bool, window: int, repeat: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Additive mask [batch, 1, repeat * width, kv_max] of `dtype`, or None where every key is visible.

        Args:
            causal: a query sees keys up to its own position (ignored where `custom` is set).
            window: keys further back than this many positions are hidden; negative means no window.
            repeat: times the query rows repeat along the row axis (query heads that share a KV head).
            dtype: the query's dtype.
        """
        key = (causal, window, repeat, dtype)
        if key not in self._masks:
            allowed = self._allowed(causal, window)
            self._masks[key] = None if allowed is None else _additive(allowed, repeat, dtype)
        return self._masks[key]

    def _allowed(self, causal: bool, window: int) -> torch.Tensor | None:
        hides_future = self.custom is not None or (causal and self.width > 1)
        hides_past = 0 <= window < self.kv_max
        if not (hides_future or hides_past or self.padded):
            return None
        keys = torch.arange(self.kv_max)
        allowed = (keys < self.kv_lens[:, None])[:, None, :]
        queries = (self.kv_lens - self.width)[:, None] + torch.arange(self.width)
        if self.custom is not None:
            allowed = allowed & self.custom
            queries = queries if self.positions is None else self.positions
        elif causal:
            allowed = allowed & (keys <= queries[:, :, None])
        if hides_past:
            allowed = allowed & (keys >= queries[:, :, None] - window)
        return allowed.expand(self.batch, self.width, self.kv_max)


def _additive(allowed: torch.Tensor, repeat: int, dtype: torch.dtype) -> torch.Tensor:
    mask = torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, float("-inf"))
    return mask.repeat(1, repeat, 1).unsqueeze(1)


def block_plans(
    table: torch.Tensor,
    rows: torch.Tensor,
    kv_lens: torch.Tensor,
    widths: list[int],
    custom_mask: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> list[BlockPlan]:
    """Plan one forward pass over requests of any query width.

    Requests of one width whose padding would waste little share one plan; others get a plan each.

    Args:
        table: int [requests, context] map from a request's position to its KV-pool row (`req_to_token`).
        rows: int64 [batch] rows of `table`.
        kv_lens: int64 [batch] keys each request sees, its own query rows included.
        widths: query rows of each request.
        custom_mask: bool, flat: for each request `width * kv_len` entries, row-major (SGLang's tree-mask layout).
        positions: int64 [sum(widths)] query positions; read only where a window meets a custom mask.
    """
    lens = kv_lens.tolist()
    longest = max(lens)
    if len(set(widths)) == 1 and len(lens) * longest <= 2 * sum(lens) + 2048:
        width = widths[0]
        blocks = None if positions is None else positions.view(len(lens), width)
        return [_plan(table, rows, kv_lens, lens, 0, width, custom_mask, blocks)]
    plans = []
    start = mask_start = 0
    for i, (length, width) in enumerate(zip(lens, widths, strict=True)):
        part = None if custom_mask is None else custom_mask[mask_start : mask_start + width * length]
        block = None if positions is None else positions[start : start + width].view(1, width)
        if width:
            plans.append(_plan(table, rows[i : i + 1], kv_lens[i : i + 1], [length], start, width, part, block))
        start += width
        mask_start += width * length
    return plans


def _plan(
    table: torch.Tensor,
    rows: torch.Tensor,
    kv_lens: torch.Tensor,
    lens: list[int],
    start: int,
    width: int,
    custom_mask: torch.Tensor | None,
    positions: torch.Tensor | None,
) -> BlockPlan:
    kv_max = max(lens)
    padded = min(lens) != kv_max
    picked = table[rows, :kv_max].long()
    if padded:
        beyond = torch.arange(kv_max) >= kv_lens[:, None]
        picked = torch.where(beyond, picked[:, :1], picked)
    slots: torch.Tensor | slice = picked.reshape(-1)
    if len(lens) == 1:
        slots = _as_slice(picked[0])
    custom = None if custom_mask is None else _pad_custom(custom_mask, lens, width, kv_max)
    return BlockPlan(start, len(lens), width, kv_lens, slots, custom, positions, kv_max, padded)


def _as_slice(slots: torch.Tensor) -> torch.Tensor | slice:
    first, last = int(slots[0]), int(slots[-1])
    if last - first == slots.numel() - 1 and bool((slots[1:] - slots[:-1] == 1).all()):
        return slice(first, last + 1)
    return slots


def _pad_custom(mask: torch.Tensor, lens: list[int], width: int, kv_max: int) -> torch.Tensor:
    padded = torch.zeros((len(lens), width, kv_max), dtype=torch.bool)
    offset = 0
    for i, length in enumerate(lens):
        part = mask[offset : offset + width * length]
        padded[i, :, :length] = part.view(width, length)
        offset += width * length
    return padded
