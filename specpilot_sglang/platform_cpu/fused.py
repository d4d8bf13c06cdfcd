"""Cheaper torch forms of SGLang's small per-layer ops; at these model sizes their call cost is a third of a step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

DISPATCH_KEY = "specpilot_cpu"

# Bumped once a forward pass: rotary rows gathered for one `positions` object hold within a pass only,
# because SGLang rewrites its position buffers in place between passes.
_pass_number = 0


def begin_forward_pass() -> None:
    """Forget what was computed for the previous pass's positions."""
    global _pass_number
    _pass_number += 1


def register_fused_ops() -> None:
    """Offer the ops below to SGLang's dispatcher under this platform's key."""
    from sglang.kernels.fused_op import BaseFusedOp
    from sglang.srt.layers.activation import SiluAndMul
    from sglang.srt.layers.layernorm import RMSNorm
    from sglang.srt.layers.rotary_embedding import RotaryEmbedding

    for op, function in ((RMSNorm, rms_norm), (SiluAndMul, silu_and_mul), (RotaryEmbedding, rotary)):
        BaseFusedOp.register_oot_forward(op, function, DISPATCH_KEY)


def rms_norm(
    op: Any,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
    post_residual_addition: torch.Tensor | None = None,
    quant_linear: Any = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm of x (+ residual), [..., hidden]; returns the norm and, given a residual, the sum."""
    unusual = op.variance_size_override or op.override_orig_dtype or op.fp32_residual or op.cast_x_before_out_mul
    if unusual or post_residual_addition is not None or op.weight.dtype != x.dtype:
        result: torch.Tensor | tuple[torch.Tensor, torch.Tensor] = op.forward_native(
            x, residual, post_residual_addition, quant_linear
        )
        return result
    if residual is None:
        return F.rms_norm(x, (op.hidden_size,), op.weight, op.variance_epsilon)
    total = x + residual
    return F.rms_norm(total, (op.hidden_size,), op.weight, op.variance_epsilon), total


def silu_and_mul(op: Any, x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of x [..., 2 * width], gate first; returns [..., width]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def rotary(
    op: Any,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    offsets: torch.Tensor | None = None,
    fused_set_kv_buffer_arg: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Neox rotary embedding of query and key [tokens, heads * head_size] at int64 positions [tokens]."""
    if offsets is not None or op.rotary_dim != op.head_size or not op.is_neox_style or positions.ndim != 1:
        result: tuple[torch.Tensor, torch.Tensor] = op.forward_native(
            positions, query, key, offsets, fused_set_kv_buffer_arg
        )
        return result
    cos, sin = _rotary_rows(op, positions, query.dtype)
    return _rotate(query, cos, sin, op.head_size), _rotate(key, cos, sin, op.head_size)


def _rotary_rows(op: Any, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    cached = op.__dict__.get("_specpilot_rows")
    if cached is not None and cached[0] == _pass_number and cached[1] is positions and cached[2].dtype == dtype:
        return cached[2], cached[3]
    cos, sin = op.cos_sin_cache.index_select(0, positions).to(dtype).chunk(2, dim=-1)
    cos = torch.cat([cos, cos], dim=-1).unsqueeze(1)
    sin = torch.cat([-sin, sin], dim=-1).unsqueeze(1)
    op.__dict__["_specpilot_rows"] = (_pass_number, positions, cos, sin)
    return cos, sin


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, head_size: int) -> torch.Tensor:
    # Swapping the halves and a sine with signs is the rotation in two passes over x.
    heads = x.view(x.shape[0], -1, head_size)
    swapped = torch.roll(heads, head_size // 2, -1)
    return torch.addcmul(heads * cos, swapped, sin).view(x.shape)
