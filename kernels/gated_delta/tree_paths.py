"""Root-to-node paths of draft trees, worked out once a step and read by every layer's tree kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TreePaths:
    """Paths of `batch` trees of `nodes` rows, at most 64; a path has at most `width` nodes.

    Attributes:
        nodes_of: int32 [batch, nodes, width], the nodes from the root to each node, -1 past it.
        depths: int32 [batch, nodes].
        owners: int32 [batch, nodes], for kernels that walk leaf by leaf: the leaf that writes this node's output; a
            leaf owns itself.
        ancestors: int64 [batch, nodes], bit j of row i tells that node j lies on node i's path (i itself included).
    """

    nodes_of: torch.Tensor
    depths: torch.Tensor
    owners: torch.Tensor
    ancestors: torch.Tensor

    @property
    def width(self) -> int:
        """Most nodes on a path."""
        return self.nodes_of.shape[2]

    @classmethod
    def empty(cls, batch: int, nodes: int, width: int, device: torch.device | str) -> TreePaths:
        """Room for the paths of `batch` trees; every node stands for itself until they are written."""
        nodes_of = torch.full((batch, nodes, width), -1, dtype=torch.int32, device=device)
        index = torch.arange(nodes, device=device)
        nodes_of[:, :, 0] = index.int()
        depths = torch.zeros(batch, nodes, dtype=torch.int32, device=device)
        own = torch.ones_like(index) << index
        return cls(nodes_of, depths, index.int().repeat(batch, 1), own.repeat(batch, 1))

    def first(self, batch: int) -> TreePaths:
        """The paths of the first `batch` trees; views."""
        return TreePaths(self.nodes_of[:batch], self.depths[:batch], self.owners[:batch], self.ancestors[:batch])

    @classmethod
    def of(cls, parents: torch.Tensor, width: int) -> TreePaths:
        """Work out the paths of trees given by parents.

        Args:
            parents: int [batch, nodes], a parent before its children, negative for roots. Rows that hang nowhere
                (padding) are paths of their own.
            width: most nodes on a path, the root included.
        """
        parents = parents.long()
        batch, nodes = parents.shape
        index = torch.arange(nodes, device=parents.device).expand(batch, -1)
        upward = [index]
        for _ in range(width - 1):
            last = upward[-1]
            upward.append(torch.where(last >= 0, parents.gather(1, last.clamp(min=0)), -1).clamp(min=-1))
        line = torch.stack(upward, 2)
        depths = (line >= 0).sum(2) - 1
        # Turned round: place d of the path is the ancestor `depth - d` steps up.
        steps = depths[:, :, None] - torch.arange(width, device=parents.device)
        nodes_of = torch.where(steps >= 0, line.gather(2, steps.clamp(min=0)), -1)
        inner = (parents[:, None, :] == index[:, :, None]).any(2)
        passes = (nodes_of[:, :, None, :] == index[:, None, :, None]).any(3)
        owners = (passes & ~inner[:, :, None]).int().argmax(1)
        bits = torch.ones_like(index) << index
        ancestors = torch.where(passes, bits[:, None, :], 0).sum(2)
        return cls(nodes_of.int().contiguous(), depths.int().contiguous(), owners.int().contiguous(), ancestors)

    def parents(self) -> torch.Tensor:
        """Parent of each node, int64 [batch, nodes], -1 for roots and padding."""
        above = (self.depths.long() - 1).clamp(min=0)[:, :, None]
        found = self.nodes_of.long().gather(2, above).squeeze(2)
        return torch.where(self.depths > 0, found, -1)
