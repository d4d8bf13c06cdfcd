"""Torch forms of the Triton kernels that the DFLASH path launches on any out-of-tree device."""

from __future__ import annotations

from typing import Any

import torch


def extend_cache_locs(
    *, req_pool_indices: torch.Tensor, req_to_token: torch.Tensor, start_offset: torch.Tensor, **rest: Any
) -> torch.Tensor:
    """Gather the KV slots of each request's next `draft_token_num` positions.

    Returns:
        int64 [batch * draft_token_num], request-major.
    """
    width = int(rest["draft_token_num"])
    columns = start_offset.long()[:, None] + torch.arange(width)
    return req_to_token[req_pool_indices.long()[:, None], columns].long().reshape(-1)


def assign_req_to_token_pool(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    batch_size: int,
) -> None:
    """Write packed slots into `req_to_token[req, start:end]` of each request, in place."""
    offset = 0
    bounds = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for _, (request, start, end) in zip(range(batch_size), bounds, strict=False):
        count = end - start
        req_to_token[request, start:end] = out_cache_loc[offset : offset + count].to(req_to_token.dtype)
        offset += count


def last_loc(req_to_token: torch.Tensor, rows: torch.Tensor, prefix_lens: torch.Tensor) -> torch.Tensor:
    """KV slot of each request's last cached token, -1 where nothing is cached. Returns int64 [batch]."""
    found = req_to_token[rows.long(), (prefix_lens.long() - 1).clamp(min=0)].long()
    return torch.where(prefix_lens > 0, found, torch.full_like(found, -1))


def table_qk_norm_rope_(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    num_q_heads: int,
    num_k_heads: int,
    head_dim: int,
    eps: float,
) -> None:
    """RMSNorm and neox rotary embedding of q and k inside the fused qkv tensor, in place.

    Args:
        qkv: [tokens, (q heads + 2 * k heads) * head_dim], any float dtype.
        positions: int [tokens].
        q_weight, k_weight: [head_dim].
        cos_sin_cache: float32 [context, head_dim], cosines then sines.
        num_q_heads, num_k_heads, head_dim: the split of qkv.
        eps: added to the mean square.
    """
    heads = num_q_heads + num_k_heads
    x = qkv[:, : heads * head_dim].view(-1, heads, head_dim).float()
    weight = torch.cat([q_weight.expand(num_q_heads, -1), k_weight.expand(num_k_heads, -1)]).float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    cos, sin = cos_sin_cache[positions].float().chunk(2, dim=-1)
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    rotated = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
    qkv[:, : heads * head_dim] = rotated.reshape(qkv.shape[0], -1).to(qkv.dtype)
