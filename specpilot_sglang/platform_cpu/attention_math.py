"""Grouped-query attention of a planned group of query blocks, in torch."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from specpilot_sglang.platform_cpu.attention_plan import BlockPlan

# Folding the query heads of one KV head into the row axis saves torch's copies of K and V,
# but multiplies the mask; past this many rows the mask costs more.
_FOLD_ROWS = 512


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: BlockPlan,
    *,
    scale: float,
    causal: bool,
    window: int = -1,
) -> torch.Tensor:
    """Attention of one planned group.

    Args:
        q: [plan.rows, heads, dim], any float dtype.
        keys: [pool rows, kv heads, dim], same dtype.
        values: [pool rows, kv heads, v dim], same dtype.
        plan: slots, lengths and masks of the group.
        scale: factor on the scores.
        causal: a query sees keys up to its own position.
        window: positions a query looks back, negative for all.

    Returns:
        [plan.rows, heads * v dim] of q's dtype.
    """
    heads, dim = q.shape[1], q.shape[2]
    kv_heads, v_dim = values.shape[1], values.shape[2]
    group = heads // kv_heads
    batch, width = plan.batch, plan.width
    k = _gather(keys, plan).view(batch, plan.kv_max, kv_heads, dim).transpose(1, 2)
    v = _gather(values, plan).view(batch, plan.kv_max, kv_heads, v_dim).transpose(1, 2)
    if width * group > _FOLD_ROWS:
        blocks = q.view(batch, width, heads, dim).transpose(1, 2)
        if plan.is_plain_causal(causal, window):
            out = sdpa(blocks, k, v, scale=scale, is_causal=True, enable_gqa=group > 1)
        else:
            mask = plan.mask(causal, window, 1, q.dtype)
            out = sdpa(blocks, k, v, attn_mask=mask, scale=scale, enable_gqa=group > 1)
        return out.transpose(1, 2).reshape(plan.rows, heads * v_dim)
    mask = plan.mask(causal, window, group, q.dtype)
    if width == 1:
        folded = q.reshape(batch, kv_heads, group, dim)
        return sdpa(folded, k, v, attn_mask=mask, scale=scale).reshape(batch, heads * v_dim)
    folded = q.reshape(batch, width, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(batch, kv_heads, group * width, dim)
    out = sdpa(folded, k, v, attn_mask=mask, scale=scale)
    out = out.view(batch, kv_heads, group, width, v_dim).permute(0, 3, 1, 2, 4)
    return out.reshape(plan.rows, heads * v_dim)


def _gather(pool: torch.Tensor, plan: BlockPlan) -> torch.Tensor:
    if isinstance(plan.slots, slice):
        return pool[plan.slots]
    return pool.index_select(0, plan.slots)
