"""Edge scores of a draft tree: how likely a token is after the path so far, by kind of drafter."""

from __future__ import annotations

from typing import Protocol

import torch

from specpilot_sglang.kernels.tree_build.best import best_of_vocabulary


class EdgeScores(Protocol):
    """What the builder asks of a drafter's block pass.

    Attributes:
        depth: positions the block proposes tokens for.
        independent: whether a position's candidates and scores are the same under every parent.
    """

    depth: int
    independent: bool

    def expand(self, level: int, ranks: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Children of the nodes of one level.

        Args:
            level: position in the block, 0 for children of the root.
            ranks: int64 [batch, parents], which candidate of the level before a parent is (0 at the root).
            tokens: int64 [batch, parents], the parents' tokens.

        Returns:
            (tokens int64, log probabilities float32), each [batch, parents, candidates]; a parent's children carry
            different tokens, -inf marks none. Where `independent`, children are in falling order.
        """
        ...


class MarginalScores:
    """DFlash: each position's own distribution, whatever came before it."""

    independent = True

    def __init__(self, tokens: torch.Tensor, logprobs: torch.Tensor) -> None:
        """Take candidates int64 and log probabilities float32, [batch, depth, candidates], in falling order."""
        self.tokens, self.logprobs = tokens, logprobs
        self.depth = tokens.shape[1]

    @classmethod
    def from_logits(cls, logits: torch.Tensor, candidates: int) -> MarginalScores:
        """Take the best `candidates` of logits [batch, depth, vocab]."""
        best, tokens, whole = best_of_vocabulary(logits, min(candidates, logits.shape[-1]))
        return cls(tokens, best - whole)

    def expand(self, level: int, ranks: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `EdgeScores`."""
        shape = (*ranks.shape, self.tokens.shape[2])
        return self.tokens[:, level, None].expand(shape), self.logprobs[:, level, None].expand(shape)


class LatticeScores:
    """DFlash2 and DSpark: log probabilities of every pair of adjacent candidates."""

    independent = False

    def __init__(self, tokens: torch.Tensor, logprobs: torch.Tensor) -> None:
        """Take candidates int64 [batch, depth, K] and log probabilities float32 [batch, depth, K before, K after].

        They may be normalised over more than the candidates. At depth 0 every row of "before" is the committed token's.
        """
        self.tokens, self.logprobs = tokens, logprobs.float()
        self.depth = tokens.shape[1]

    @classmethod
    def normalised(cls, tokens: torch.Tensor, scores: torch.Tensor) -> LatticeScores:
        """Take a selector's pair scores [batch, depth, K before, K after], which are normalised over the successors."""
        return cls(tokens, scores.float().log_softmax(-1))

    def expand(self, level: int, ranks: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `EdgeScores`."""
        width = self.tokens.shape[2]
        rows = self.logprobs[:, level].gather(1, ranks[:, :, None].expand(-1, -1, width))
        return self.tokens[:, level, None].expand_as(rows), rows


class MarkovScores:
    """DSpark: a position's logits plus a low-rank bias by the token before it, over the best candidates."""

    independent = False

    def __init__(
        self, logits: torch.Tensor, before: torch.Tensor, after: torch.Tensor, candidates: int, pool: int = 4
    ) -> None:
        """Prepare the block's scores.

        Args:
            logits: [batch, depth, vocab], without the bias.
            before: [vocab, rank], embedding of the token before (`markov_w1`).
            after: [vocab, rank], rows that it is multiplied with (`markov_w2`).
            candidates: children of a node.
            pool: candidates are sought among the best `pool * candidates` by logits alone; the bias of the whole
                vocabulary for every node would cost an LM head a node.
        """
        self._before, self._after = before, after
        self._unary, self._pool = logits.float().topk(min(pool * candidates, logits.shape[-1]), dim=-1)
        self._width = min(candidates, self._pool.shape[-1])
        self.depth = logits.shape[1]
        # What lies outside the pool takes part in the normaliser without its bias.
        inside = self._unary.logsumexp(-1)
        whole = logits.float().logsumexp(-1)
        self._outside = whole + torch.log1p(-(inside - whole).exp().clamp(max=1 - 1e-7))

    def expand(self, level: int, ranks: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `EdgeScores`."""
        pool = self._pool[:, level]
        bias = torch.einsum("bpr,bcr->bpc", self._before[tokens].float(), self._after[pool].float())
        scores = self._unary[:, level, None] + bias
        whole = torch.logaddexp(scores.logsumexp(-1), self._outside[:, level, None])
        best, picked = (scores - whole[..., None]).topk(self._width, dim=-1)
        return pool[:, None].expand_as(scores).gather(2, picked), best
