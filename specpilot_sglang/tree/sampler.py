"""From the drafter's hidden states to trees: candidates over the target's LM head, edge scores, best-first trees.

On a GPU this runs inside the drafter's CUDA graph, in place of stock's sampler of a chain.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.runtime_context import get_parallel

from specpilot_sglang.kernels.tree_build.best import best_of_vocabulary
from specpilot_sglang.kernels.tree_build.build import build
from specpilot_sglang.kernels.tree_build.launch import LinkedTrees, build_linked
from specpilot_sglang.kernels.tree_build.scores import LatticeScores, MarginalScores
from specpilot_sglang.tree.dspark import CANDIDATES, has_markov_head, pair_scores, share_target_modules
from specpilot_sglang.tree.simulate import shaped


class TreeSampler:
    """Builds the trees of a block pass into their tier's buffers, which stay where they are."""

    def __init__(self, worker: Any, head: Any) -> None:
        self._worker, self._head = worker, head
        self._simulated = worker.simulated_length > 0
        if worker.selector is not None:
            # Stock attaches the head only when it captures its own sampler.
            worker.draft_model.lm_head = head
        if has_markov_head(worker.draft_model):
            share_target_modules(worker.draft_model, worker.model_runner.model, head)

    def __call__(self, hidden: torch.Tensor, ids: torch.Tensor) -> None:
        """Build a tree a request.

        Args:
            hidden: [requests * block, hidden], the drafter's output.
            ids: int64 [requests * block], its input; slot 0 of a block is the committed token.
        """
        block = int(self._worker.block_size)
        size = hidden.shape[0] // block
        tier = self._worker.tiers.of(size)
        said = hidden.view(size, block, -1)[:, self._worker.first_row :]
        roots = ids.view(size, block)[:, 0]
        edges = self._edges(said[:, : tier.depth], roots, tier.budget - 1)
        if self._simulated:
            edges = shaped(edges)
        out = tier.trees.first(size)
        if roots.is_cuda:
            build_linked(edges, roots, tier.budget, tier.depth, out=out)
        else:
            _build_in_torch(edges, roots, tier.budget, tier.depth, out)

    def _edges(self, said: torch.Tensor, roots: torch.Tensor, most: int) -> MarginalScores | LatticeScores:
        if self._worker.selector is not None:
            from sglang.srt.speculative.dflash_worker_v2 import _selector_lattice

            tokens, scores = _selector_lattice(self._worker.draft_model, said, roots)
            return LatticeScores.normalised(tokens, scores)
        if has_markov_head(self._worker.draft_model):
            marginals = candidates(self._worker, self._head, said, CANDIDATES)
            return pair_scores(marginals, roots, self._worker.draft_model.markov_head)
        return candidates(self._worker, self._head, said, most)


def candidates(worker: Any, head: Any, hidden: torch.Tensor, width: int) -> MarginalScores:
    """Best `width` tokens of each masked position with their log probabilities, over all ranks' vocabulary shards."""
    size, depth, dim = hidden.shape
    logits = worker.head_logits(hidden.reshape(-1, dim), head).view(size, depth, -1)
    shard = getattr(head, "shard_indices", None)
    start = 0
    if shard is not None:
        logits, start = logits[..., : shard.num_org_elements], int(shard.org_vocab_start_index)
    group = get_parallel().tp_group
    if group.world_size == 1:
        return MarginalScores.from_logits(logits, width)
    return _over_ranks(logits, start, width, group)


def _over_ranks(logits: torch.Tensor, start: int, width: int, group: Any) -> MarginalScores:
    best, tokens, norm = best_of_vocabulary(logits, min(width, logits.shape[-1]))
    # Doubles hold every token id, so one gather carries scores, ids and the shard's normaliser.
    packed = torch.cat([best.double(), (tokens + start).double(), norm.double()], -1)
    shares = group.all_gather(packed.contiguous(), dim=0).view(group.world_size, *packed.shape)
    count = best.shape[-1]
    scores = shares[..., :count].movedim(0, -2).flatten(-2)
    ids = shares[..., count : 2 * count].movedim(0, -2).flatten(-2).long()
    whole = shares[..., -1].logsumexp(0)
    # Ranks hold rising shards, so a stable sort resolves ties as one vocabulary would: the lower token first.
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :width]
    return MarginalScores(ids.gather(-1, order), (scores.gather(-1, order) - whole[..., None]).float())


def _build_in_torch(edges: Any, roots: torch.Tensor, budget: int, depth: int, out: LinkedTrees) -> None:
    trees = build(edges, roots, budget, depth)
    child, sibling = trees.links()
    padded = out.trees.nodes - budget
    for target, source, fill in (
        (out.trees.tokens, trees.tokens, None),
        (out.trees.parents, trees.parents, -1),
        (out.trees.depths, trees.depths, 0),
        (out.trees.scores, trees.scores, float("-inf")),
        (out.child, child, -1),
        (out.sibling, sibling, -1),
    ):
        target[:, :budget] = source
        if padded:
            target[:, budget:] = roots[:, None] if fill is None else fill
    out.trees.sizes.copy_(trees.sizes)
