"""The platform's cheaper per-layer ops against plain torch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from specpilot_sglang.platform_cpu import fused, ops


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def rope_op(dim=16):
    angles = torch.outer(torch.arange(64.0), 1.0 / 100 ** (torch.arange(0, dim, 2) / dim))
    cache = torch.cat([angles.cos(), angles.sin()], dim=-1)
    return SimpleNamespace(rotary_dim=dim, head_size=dim, is_neox_style=True, cos_sin_cache=cache)


def plain_rope(x, cos_sin, dim=16):
    heads = x.view(x.shape[0], -1, dim)
    cos, sin = (part[:, None] for part in cos_sin.chunk(2, -1))
    low, high = heads.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).view(x.shape)


def test_rotary_matches_and_forgets_positions_rewritten_between_passes():
    op, q, k = rope_op(), torch.randn(3, 64), torch.randn(3, 32)
    positions = torch.tensor([3, 9, 40])
    for _ in range(2):
        fused.begin_forward_pass()
        got_q, got_k = fused.rotary(op, positions, q, k)
        torch.testing.assert_close(got_q, plain_rope(q, op.cos_sin_cache[positions]))
        torch.testing.assert_close(got_k, plain_rope(k, op.cos_sin_cache[positions]))
        positions.add_(5)


def test_norm_with_residual_and_activation():
    op = SimpleNamespace(
        variance_size_override=None,
        override_orig_dtype=None,
        fp32_residual=False,
        cast_x_before_out_mul=False,
        weight=torch.randn(8),
        hidden_size=8,
        variance_epsilon=1e-5,
    )
    x, residual = torch.randn(3, 8), torch.randn(3, 8)
    got, total = fused.rms_norm(op, x, residual)
    want = (x + residual) * torch.rsqrt((x + residual).square().mean(-1, keepdim=True) + 1e-5) * op.weight
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(fused.silu_and_mul(None, x), F.silu(x[:, :4]) * x[:, 4:])


def test_table_qk_norm_rope_leaves_values_alone():
    op, qkv = rope_op(), torch.randn(3, 4 * 16)  # two query heads, one key and one value head
    positions, weight = torch.tensor([1, 7, 30]), torch.randn(16)
    before = qkv.clone()
    ops.table_qk_norm_rope_(qkv, positions, weight, weight, op.cos_sin_cache, 2, 1, 16, 1e-6)
    heads = before[:, :48].view(3, 3, 16)
    normed = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + 1e-6) * weight
    want = plain_rope(normed.reshape(3, 48), op.cos_sin_cache[positions])
    torch.testing.assert_close(qkv[:, :48], want, atol=1e-5, rtol=1e-5)
    assert torch.equal(qkv[:, 48:], before[:, 48:])


def test_cache_location_helpers():
    table = torch.arange(40, dtype=torch.int32).view(4, 10)
    rows, starts = torch.tensor([2, 0]), torch.tensor([3, 5])
    got = ops.extend_cache_locs(req_pool_indices=rows, req_to_token=table, start_offset=starts, draft_token_num=2)
    assert got.tolist() == [23, 24, 5, 6]
    assert got.dtype == torch.int64
    ops.assign_req_to_token_pool(rows, table, starts, starts + torch.tensor([2, 1]), torch.tensor([70, 71, 72]), 2)
    assert table[2, 3:5].tolist() == [70, 71]
    assert table[0, 5].item() == 72
    assert ops.last_loc(table, rows, torch.tensor([5, 0])).tolist() == [71, -1]
