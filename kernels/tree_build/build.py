"""Builds best-first draft trees for a batch of requests on the device, without a heap.

A path's score is the sum of its edges' log probabilities, so it only falls along a path and the tree a heap would pop
under a budget is simply the `budget` best paths. A path of depth d among them continues one of the `budget` best of
depth d - 1: the best of every depth are found level by level, each from the level before, and then all together.
Equal scores are taken shallow first, then in the order of parents and candidates.
"""

from __future__ import annotations

import functools

import torch

from specpilot_sglang.kernels.tree_build.scores import EdgeScores
from specpilot_sglang.kernels.tree_build.tree import Trees


def build(
    edges: EdgeScores,
    roots: torch.Tensor,
    budget: int,
    max_depth: int | None = None,
    budgets: torch.Tensor | None = None,
) -> Trees:
    """Build one tree a request.

    Args:
        edges: scores of the drafter's block.
        roots: int64 [batch], the committed tokens.
        budget: nodes a tree, the root included; at least 1.
        max_depth: tokens from the root to the deepest node; None allows the whole block.
        budgets: int64 [batch], fewer nodes for some requests; None is `budget` for all.

    Returns:
        Trees of `budget` rows, the best that the budget allows under `edges`.
    """
    if budget < 1:
        raise ValueError(f"a tree has at least its root, not {budget} nodes")
    batch, device = roots.shape[0], roots.device
    tokens, scores = [roots.long()[:, None]], [torch.zeros(batch, 1, device=device)]
    parents, depths = [torch.full((batch, 1), -1, device=device)], [torch.zeros(1, dtype=torch.int64, device=device)]
    ranks = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    first = 0
    for level in range(min(edges.depth, edges.depth if max_depth is None else max_depth) if budget > 1 else 0):
        found = _best_children(edges, level, ranks, tokens[-1], scores[-1], budget - 1)
        tokens.append(found[0])
        scores.append(found[1])
        parents.append(found[2] + first)
        ranks = found[3]
        first += scores[-2].shape[1]
        depths.append(torch.full((found[0].shape[1],), level + 1, device=device))
    flat = (torch.cat(tokens, 1), torch.cat(parents, 1), torch.cat(depths).expand(batch, -1), torch.cat(scores, 1))
    return _select(*flat, budget, budgets)


def _best_children(
    edges: EdgeScores, level: int, ranks: torch.Tensor, tokens: torch.Tensor, scores: torch.Tensor, keep: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Best `keep` children of one level: (tokens, path scores, parents within the level, candidate ranks)."""
    child_tokens, logprobs = edges.expand(level, ranks, tokens)
    width = child_tokens.shape[2]
    sums = (scores[:, :, None] + logprobs).flatten(1)
    child_tokens = child_tokens.flatten(1)
    # Parents are in falling order, and so are candidates that do not depend on them: (parent i, candidate j) has
    # (i + 1)(j + 1) - 1 betters in front of it and is out of the running past the budget.
    pairs = _hopeful(scores.shape[1], width, keep, sums.device) if edges.independent else None
    if pairs is not None:
        sums, child_tokens = sums[:, pairs], child_tokens[:, pairs]
    best, order = sums.sort(dim=1, descending=True, stable=True)
    best, order = best[:, :keep], order[:, :keep]
    place = order if pairs is None else pairs[order]
    return child_tokens.gather(1, order), best, place // width, place % width


@functools.cache
def _hopeful(parents: int, width: int, keep: int, device: torch.device) -> torch.Tensor:
    i, j = torch.arange(parents, device=device)[:, None] + 1, torch.arange(width, device=device) + 1
    return (i * j <= keep).flatten().nonzero().flatten()


def _select(
    tokens: torch.Tensor,
    parents: torch.Tensor,
    depths: torch.Tensor,
    scores: torch.Tensor,
    budget: int,
    budgets: torch.Tensor | None,
) -> Trees:
    """Keep the best `budget` of all paths [batch, paths] and renumber their parents."""
    missing = budget - scores.shape[1]
    if missing > 0:
        pad = scores.new_full((len(scores), missing), float("-inf"))
        scores = torch.cat([scores, pad], 1)
        tokens, parents, depths = (torch.cat([x, x[:, :1].expand(-1, missing)], 1) for x in (tokens, parents, depths))
    best, kept = scores.sort(dim=1, descending=True, stable=True)
    best, kept = best[:, :budget], kept[:, :budget]
    index = torch.arange(budget, device=scores.device)
    alive = best > float("-inf")
    if budgets is not None:
        # Nodes are in falling order, so the first ones are the best tree of a smaller budget, too.
        alive = alive & (index < budgets[:, None])
    place = torch.empty_like(scores, dtype=torch.int64).scatter_(1, kept, index.expand_as(kept))
    old = parents.gather(1, kept)
    parent = torch.where(old >= 0, place.gather(1, old.clamp(min=0)), -1)
    return Trees(
        tokens=torch.where(alive, tokens.gather(1, kept), tokens[:, :1]),
        parents=torch.where(alive, parent, -1),
        depths=torch.where(alive, depths.gather(1, kept), 0),
        scores=torch.where(alive, best, float("-inf")),
        sizes=alive.sum(1),
    )
