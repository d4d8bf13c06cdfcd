"""Exact acceptance: the target's own token at every node, then the path that agrees with it.

Greedy or sampled, each node's token comes from the target alone and the walk only looks it up among the children, so
what is emitted is distributed exactly as plain decoding's. (min(1, p/q) over marginals is not: siblings of one node
are not draws from one q.)
"""

from __future__ import annotations

from typing import Any

import torch

from specpilot_sglang.kernels.tree_build.launch import LinkedTrees
from specpilot_sglang.kernels.tree_build.tree import AcceptedPath, Trees
from specpilot_sglang.tree.simulate import forced


def accept(
    made: LinkedTrees, chosen: torch.Tensor, lengths: torch.Tensor, width: int, slots: torch.Tensor, simulated: int = 0
) -> AcceptedPath:
    """Follow the children that carry the target's token, from the root until none does.

    Args:
        made: the drafted trees.
        chosen: int [batch, nodes], the target's token after each node.
        lengths: int [batch], cached tokens before the root.
        width: longest path, the root included.
        slots: int64 [batch, nodes], KV slots of each request's window.
        simulated: tokens a step that acceptance is made to give (`tree.simulate`), 0 for the target's own.
    """
    if made.trees.tokens.is_cuda:
        from specpilot_sglang.kernels.tree_build import verify

        ruled = (made.child, simulated) if simulated else None
        return verify.accept(made.trees, chosen.long(), lengths, width, slots, ruled)
    chosen = forced(made, chosen, simulated) if simulated else chosen
    return walk(made.trees, chosen.long(), lengths, width, slots)


def walk(
    trees: Trees, chosen: torch.Tensor, lengths: torch.Tensor, width: int, slots: torch.Tensor | None = None
) -> AcceptedPath:
    """`accept` in torch: its oracle, and what a machine without a GPU runs; without `slots`, slots are row numbers."""
    parents = trees.parents
    agrees = (trees.tokens == chosen.gather(1, parents.clamp(min=0))) & (parents >= 0)
    agrees[:, 0] = True
    # A node is on the path when it and every ancestor of it agree; siblings differ, so one path is left.
    kept = ~(trees.ancestors() & ~agrees[:, None, :]).any(-1)
    batch, nodes = kept.shape
    index = torch.full((batch, width + 1), -1, dtype=torch.int64, device=kept.device)
    place = torch.where(kept, trees.depths, width)
    index.scatter_(1, place, torch.arange(nodes, device=kept.device).expand(batch, -1))
    index = index[:, :width]
    lens = kept.sum(1)
    emitted = chosen.new_zeros(batch, max(nodes, width))
    emitted[:, :width] = chosen.gather(1, index.clamp(min=0))
    bonus = emitted.gather(1, (lens - 1)[:, None]).squeeze(1)
    places = torch.arange(width, device=index.device)
    front = torch.where(index >= 0, index, places)
    first = torch.arange(batch, device=index.device)[:, None] * nodes
    return AcceptedPath(
        index, front, lens.int(), emitted[:, :nodes], bonus, lengths.long() + lens, front + first,
        lengths.long()[:, None] + places, first + places if slots is None else slots[:, :width].contiguous(),
    )  # fmt: skip


def draw(probs: torch.Tensor, seeds: torch.Tensor | None, positions: torch.Tensor) -> torch.Tensor:
    """Draw one token a row.

    Args:
        probs: float [rows, vocab]; rows need not sum to 1.
        seeds: int64 [rows] seeds of the requests, None for torch's generator. With seeds a row draws what plain
            decoding draws at this position.
        positions: int64 [rows], sequence positions of the rows' input tokens.

    Returns:
        int64 [rows].
    """
    if seeds is not None:
        from sglang.srt.layers.sampler import multinomial_with_seed

        drawn: torch.Tensor = multinomial_with_seed(probs.log(), seeds, positions)
        return drawn.view(-1).long()
    # Exponential clocks: the first to ring is a draw, whatever the rows sum to; no probability sync as multinomial's.
    clocks = torch.empty_like(probs, dtype=torch.float32).exponential_().clamp_(min=torch.finfo(torch.float32).tiny)
    return (probs.float() / clocks).argmax(-1)


def target_tokens(logits: torch.Tensor, sampling: Any, draft_input: Any, positions: torch.Tensor) -> torch.Tensor:
    """The target's token after each node.

    Args:
        logits: float [batch * nodes, vocab], with penalties, biases and grammar masks applied.
        sampling: the batch's `SamplingBatchInfo`, or None for greedy.
        draft_input: SGLang's draft state, which knows the batch's largest top-k.
        positions: int64 [batch * nodes].

    Returns:
        int64 [batch * nodes].
    """
    if sampling is None or sampling.is_all_greedy:
        return logits.argmax(-1)
    nodes = logits.shape[0] // len(sampling)
    weights, tokens = admitted(logits, sampling, draft_input.max_top_k)
    seeds = sampling.sampling_seed
    drawn = draw(weights, None if seeds is None else seeds.repeat_interleave(nodes), positions)
    if tokens is not None:
        drawn = tokens.gather(1, drawn[:, None]).squeeze(1)
    # SGLang's greedy requests have top-k 1; of equal logits they take the first one, whoever shares their batch.
    return torch.where(sampling.top_ks.repeat_interleave(nodes) == 1, logits.argmax(-1), drawn)


def admitted(logits: torch.Tensor, sampling: Any, most: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What top-k, top-p and min-p leave of each row's distribution, as plain decoding's sampler filters it.

    Top-k and top-p both look at the whole distribution. SGLang's speculative workers let top-p look at what top-k has
    left instead, which keeps fewer tokens.

    Args:
        logits: float [batch * nodes, vocab], before temperature.
        sampling: the batch's `SamplingBatchInfo`.
        most: largest top-k of the batch.

    Returns:
        (weights float32 [rows, candidates], tokens int64 of that shape in falling order), or the weights of the whole
        vocabulary and None. Weights need not sum to 1.
    """
    nodes = logits.shape[0] // len(sampling)

    def by_row(values: torch.Tensor) -> torch.Tensor:
        return values.view(-1).repeat_interleave(nodes)

    top_k, top_p, min_p = sampling.need_top_k_sampling, sampling.need_top_p_sampling, sampling.need_min_p_sampling
    weights, tokens = (logits.float() / by_row(sampling.temperatures)[:, None]).softmax(-1), None
    few, seeded = top_k and most < weights.shape[-1], sampling.sampling_seed is not None
    if (top_k or top_p) and (few or seeded):
        # A seed draws a rank, and of equal weights `topk` may order other ones first than plain decoding's sort does.
        weights, tokens = weights.sort(-1, descending=True) if seeded else weights.topk(most)
        before = weights.cumsum(-1) - weights
        ranks = torch.arange(weights.shape[-1], device=weights.device)
        cut = (ranks >= by_row(sampling.top_ks)[:, None]) | (before > by_row(sampling.top_ps)[:, None])
        weights = weights.masked_fill(cut, 0.0)
    elif top_k or top_p:
        whole = weights
        from sglang.srt.speculative.dflash_utils import _dflash_top_k_renorm_prob, _dflash_top_p_renorm_prob

        # What a renormalisation leaves at 0 is filtered out; it is a kernel on CUDA, where a sort is dear.
        if top_k:
            weights = weights.where(_dflash_top_k_renorm_prob(whole, by_row(sampling.top_ks)) > 0, 0.0)
        if top_p:
            weights = weights.where(_dflash_top_p_renorm_prob(whole, by_row(sampling.top_ps)) > 0, 0.0)
    if min_p:
        floor = by_row(sampling.min_ps)[:, None] * weights.amax(-1, keepdim=True)
        weights = weights.where(weights >= floor, 0.0)
    return weights, tokens


def distribution(logits: torch.Tensor, sampling: Any, most: int) -> torch.Tensor:
    """What `admitted` leaves as probabilities over the whole vocabulary, float32 [rows, vocab]."""
    weights, tokens = admitted(logits, sampling, most)
    if tokens is not None:
        weights = torch.zeros_like(logits, dtype=torch.float32).scatter_(1, tokens, weights)
    return weights / weights.sum(-1, keepdim=True)
