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
    from sglang.srt.speculative.dflash_utils import build_speculative_verify_target_probs

    batch = len(sampling)
    nodes = logits.shape[0] // batch
    probs = build_speculative_verify_target_probs(
        next_token_logits=logits,
        sampling_info=sampling,
        draft_token_num=nodes,
        bs=batch,
        max_top_k=draft_input.max_top_k,
        uniform_top_k_value=draft_input.uniform_top_k_value,
    ).view(batch * nodes, -1)
    if sampling.need_min_p_sampling:
        floor = sampling.min_ps.repeat_interleave(nodes)[:, None] * probs.amax(-1, keepdim=True)
        probs = probs.where(probs >= floor, 0.0)
    seeds = sampling.sampling_seed
    return draw(probs, None if seeds is None else seeds.repeat_interleave(nodes), positions)
