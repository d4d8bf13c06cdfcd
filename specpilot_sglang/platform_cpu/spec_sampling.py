"""Sampling verification of a linear draft block, in torch (SGLang's own needs the CUDA-only `sgl_kernel`)."""

from __future__ import annotations

import torch


def chain_sampling_target_only(
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Accept drafted tokens with the target's own probability; draw the next token from what is left.

    Slot 0 of a block is the committed token. Drafted token i is accepted with probability p(token | before it);
    at the first refusal the next token is drawn from p with the refused token removed, which makes every emitted
    token a draw from p. Arguments and outputs are those of SGLang's kernel of the same purpose, restricted to
    chains: `predicts` int32 [batch * width], `accept_index` int32 [batch, width] and `accept_token_num` int32
    [batch] are written; `candidates` int64 [batch, width]; `target_probs` float32 [batch, width, vocab];
    `uniform_samples` float32 [batch, width]; `uniform_samples_for_final_sampling` float32 [batch]. Thresholds
    below 1 accept more (lossy), as SGLang's flags of the same names do. The tree links are a chain's and unused.
    """
    batch, width = candidates.shape
    drafted = candidates[:, 1:]
    p = target_probs[:, :-1].gather(2, drafted.unsqueeze(2)).squeeze(2)
    accepted = (uniform_samples[:, : width - 1] <= p / threshold_acc) | (p >= threshold_single)
    counts = accepted.long().cumprod(1).sum(1)
    requests = torch.arange(batch)
    rest = target_probs[requests, counts].clone()
    refused = counts < width - 1
    rest[requests[refused], drafted[refused, counts[refused]]] = 0.0
    final = _draw(rest, uniform_samples_for_final_sampling)
    steps = torch.arange(width)
    flat = retrive_index.long()
    accept_index.copy_(torch.where(steps <= counts[:, None], flat, -1).to(accept_index.dtype))
    accept_token_num.copy_(counts)
    emitted = torch.cat([drafted, final[:, None]], dim=1)
    emitted[requests, counts] = final
    predicts[flat.reshape(-1)] = emitted.reshape(-1).to(predicts.dtype)


def _draw(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Draw one index a row by inverse cumulative weights, in double precision; int64 [batch]."""
    cumulative = weights.double().cumsum(1)
    target = uniform.double()[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    last = weights.shape[1] - 1 - (weights > 0).int().flip(1).argmax(1)
    return torch.minimum(drawn, last)
