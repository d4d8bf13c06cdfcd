"""A batch of draft trees, and what a verify pass reads from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class Trees:
    """`batch` trees of `nodes` rows each, in the order of their scores; node 0 is the root (the committed token).

    A parent precedes its children and siblings are ordered by score. Rows past a tree's size are padding: they carry
    the root's token, hang nowhere (`parents` -1) and are reached by no link.

    Attributes:
        tokens: int64 [batch, nodes].
        parents: int64 [batch, nodes], -1 for the root and for padding.
        depths: int64 [batch, nodes], 0 for the root and for padding.
        scores: float32 [batch, nodes], log probability of the path; -inf for padding.
        sizes: int64 [batch], nodes that are no padding, the root included.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    depths: torch.Tensor
    scores: torch.Tensor
    sizes: torch.Tensor

    @property
    def nodes(self) -> int:
        """Rows a tree."""
        return self.tokens.shape[1]

    def links(self) -> tuple[torch.Tensor, torch.Tensor]:
        """First child and next sibling of each node, int64 [batch, nodes], -1 where there is none.

        SGLang's tree verify and its grammar walk read this form.
        """
        child = self.parents[:, None, :] == self._index()[:, None]
        sibling = (self.parents[:, :, None] == self.parents[:, None, :]) & (self.parents >= 0)[:, :, None]
        sibling &= self._index()[None, :] > self._index()[:, None]
        return _first(child), _first(sibling)

    def ancestors(self) -> torch.Tensor:
        """Which nodes each node sees: bool [batch, nodes, nodes], itself and its ancestors; padding sees itself."""
        seen = torch.eye(self.nodes, dtype=torch.bool, device=self.tokens.device).repeat(len(self.tokens), 1, 1)
        hop = self.parents.clamp(min=0)
        inner = self.parents >= 0
        # Each round doubles how far up a row looks, so the deepest tree needs log2 of its depth.
        reach = 1
        while reach < self.nodes:
            seen = seen | (seen.gather(1, hop[:, :, None].expand_as(seen)) & inner[:, :, None])
            inner = inner & inner.gather(1, hop)
            hop = hop.gather(1, hop)
            reach *= 2
        return seen

    def positions(self, lengths: torch.Tensor) -> torch.Tensor:
        """Sequence position of each node, int64 [batch, nodes], given tokens before the root, int [batch]."""
        return lengths.long()[:, None] + self.depths

    def _index(self) -> torch.Tensor:
        return torch.arange(self.nodes, device=self.tokens.device)


class AcceptedPath(NamedTuple):
    """What a verify pass settled, for `batch` requests, trees of `nodes` rows and paths of at most `width` nodes.

    Attributes:
        index: int64 [batch, width], nodes of the accepted path from the root on, -1 past its end.
        front: int64 [batch, width], the same with a place's own number past the end.
        lens: int32 [batch], tokens emitted, the target's own last one included.
        emitted: int64 [batch, nodes], the emitted tokens; undefined past `lens`.
        bonus: int64 [batch], the last of them, which no draft proposed.
        new_lens: int64 [batch], tokens that are cached after this step.
        rows: int64 [batch, width], `front` as rows of the whole batch.
        positions: int64 [batch, width], places of the path in the sequence.
        locs: int64 [batch, width], the KV slots that the path is moved to: the first of each request's window.
    """

    index: torch.Tensor
    front: torch.Tensor
    lens: torch.Tensor
    emitted: torch.Tensor
    bonus: torch.Tensor
    new_lens: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    locs: torch.Tensor

    @property
    def tokens(self) -> torch.Tensor:
        """Emitted tokens by place on the path, int64 [batch, width]."""
        return self.emitted[:, : self.index.shape[1]]

    def flat_index(self, nodes: int) -> torch.Tensor:
        """`index` into a batch's flat rows, `nodes` rows a request; int64 [batch, width], -1 past the path."""
        return torch.where(self.index >= 0, self.index + self._roots(nodes), -1)

    def tokens_by_row(self, nodes: int) -> torch.Tensor:
        """The emitted token after each accepted node, int64 [batch * nodes] flat rows; 0 elsewhere."""
        roots = self._roots(nodes)
        on_path = self.index >= 0
        # Past its end a path points at its own root: the row that another request's path begins with is not free.
        rows = roots + torch.where(on_path, self.index, 0)
        found = self.emitted.new_zeros(len(self.index) * nodes)
        found[rows.flatten()] = torch.where(on_path, self.tokens, self.tokens[:, :1]).flatten()
        return found

    def _roots(self, nodes: int) -> torch.Tensor:
        return torch.arange(len(self.index), device=self.index.device)[:, None] * nodes


def full_mask(seen: torch.Tensor, lengths: torch.Tensor, total: int | None = None) -> torch.Tensor:
    """SGLang's flat tree mask: for each request `nodes` rows over its cached tokens, then over the nodes.

    Args:
        seen: bool [batch, nodes, nodes], see `Trees.ancestors`.
        lengths: int [batch], cached tokens before the root; every node sees them all.
        total: their sum, where the host knows it (spares a device synchronisation).

    Returns:
        bool [sum(nodes * (lengths + nodes))].
    """
    batch, nodes = seen.shape[:2]
    widths = lengths.long() + nodes
    rows = nodes * ((int(lengths.sum()) if total is None else total) + nodes * batch)
    starts = (widths * nodes).cumsum(0) - widths * nodes
    mask = torch.ones(rows, dtype=torch.bool, device=seen.device)
    index = torch.arange(nodes, device=seen.device)
    corner = starts[:, None] + index * widths[:, None] + lengths.long()[:, None]
    mask[(corner[:, :, None] + index).reshape(-1)] = seen.reshape(-1)
    return mask


def _first(table: torch.Tensor) -> torch.Tensor:
    """Index of the first True along the last axis, -1 where there is none."""
    return torch.where(table.any(-1), table.int().argmax(-1), -1)
