"""DSpark drafters under trees: their block pass is a DFlash drafter's, their Markov head gives the edges.

Stock drafts one path with them, token by token through the head. A tree needs the score of every pair of candidates of
adjacent positions instead, which is one small product a position: no pass of the head's vocabulary a node.
"""

from __future__ import annotations

from typing import Any

import torch

from specpilot_sglang.kernels.tree_build.scores import LatticeScores, MarginalScores

#: Candidates of a position, as many as DFlash2's selector has: the pair tables grow with their square.
CANDIDATES = 16


def has_markov_head(model: Any) -> bool:
    """Whether a loaded drafter is a DSpark one."""
    return getattr(model, "markov_head", None) is not None


def share_target_modules(model: Any, target: Any, head: Any) -> None:
    """Give a DSpark drafter the target's embedding and LM head, as stock's DSpark worker does."""
    from sglang.srt.lora.layers import unwrap_lora_layer

    model.attach_shared_modules(embed_tokens=unwrap_lora_layer(target.get_input_embeddings()), lm_head=head)


def is_dspark(config: Any) -> bool:
    """Whether a drafter's config names a DSpark architecture."""
    return "DSpark" in (config.architectures or [""])[0]


def first_row(config: Any) -> int:
    """The first row of a block pass that predicts a draft token.

    A DSpark drafter may predict from its committed token's own row (0); all others begin with the first mask (1).
    """
    return 0 if is_dspark(config) and getattr(config, "sample_from_anchor", True) else 1


def pair_scores(marginals: MarginalScores, roots: torch.Tensor, markov: Any) -> LatticeScores:
    """Log probabilities of each candidate after each candidate of the position before.

    Args:
        marginals: normalised log probabilities of the best candidates, without the head's bias.
        roots: int [batch], the committed tokens.
        markov: DSpark's vanilla head: `markov_w1` [vocab, rank], `markov_w2` [vocab, rank].

    Returns:
        A lattice over the same candidates. Tokens outside of them take part in the normaliser without their bias.
    """
    tokens, unary = marginals.tokens, marginals.logprobs
    before = torch.cat([roots[:, None, None].expand(-1, 1, tokens.shape[2]), tokens[:, :-1]], 1)
    left = markov.markov_w1.weight[before].float()
    right = markov.markov_w2.weight[tokens].float()
    scores = unary[:, :, None, :] + left @ right.transpose(-1, -2)
    outside = torch.log1p(-unary.logsumexp(-1).exp().clamp(max=1 - 1e-7))
    whole = torch.logaddexp(scores.logsumexp(-1), outside[:, :, None])
    return LatticeScores(tokens, scores - whole[..., None])
