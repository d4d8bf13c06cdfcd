"""Torch oracle of the short causal convolution before Gated DeltaNet, over chains and draft trees."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def windows(x: torch.Tensor, state: torch.Tensor, parents: torch.Tensor | None = None) -> torch.Tensor:
    """Inputs that each token's convolution reads: its `width - 1` ancestors, then itself.

    Args:
        x: [batch, tokens, channels].
        state: [batch, channels, width - 1], the last inputs before the first token, oldest first.
        parents: int [batch, tokens], as in `ref.recurrent`; None is a chain.

    Returns:
        [batch, tokens, channels, width].
    """
    batch, tokens, _ = x.shape
    width = state.shape[2] + 1
    if parents is None:
        return torch.cat([state.transpose(1, 2), x], dim=1).unfold(1, width, 1)
    rows = torch.arange(batch, device=x.device)
    out = x.new_empty(batch, tokens, x.shape[2], width)
    for t in range(tokens):
        parent = parents[:, t].long()
        # A window minus its oldest input is the history its node hands to its children.
        inherited = out[rows, parent.clamp(min=0)][..., 1:]
        out[:, t, :, :-1] = torch.where((parent < 0)[:, None, None], state.to(x.dtype), inherited)
        out[:, t, :, -1] = x[:, t]
    return out


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    parents: torch.Tensor | None = None,
    silu: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Depthwise causal convolution.

    Args:
        x: [batch, tokens, channels].
        weight: [channels, width]; the last column meets the newest input.
        bias: [channels] or None.
        state: [batch, channels, width - 1].
        parents: int [batch, tokens] or None.
        silu: apply SiLU to the result.

    Returns:
        (outputs [batch, tokens, channels] in x's dtype, states [batch, tokens, channels, width - 1] after each
        token). Sums run in float32 (float64 for float64 inputs).
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    seen = windows(x, state, parents)
    # One product at a time in a fixed order: a chain, a tree and a single token then agree bit for bit.
    out = (seen[..., 0].to(wide) * weight[:, 0].to(wide)).contiguous()
    for tap in range(1, weight.shape[1]):
        out = out + seen[..., tap].to(wide) * weight[:, tap].to(wide)
    if bias is not None:
        out = out + bias.to(wide)
    return (F.silu(out) if silu else out).to(x.dtype), seen[..., 1:]
