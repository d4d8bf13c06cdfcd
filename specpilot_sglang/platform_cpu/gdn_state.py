"""Moves of recurrent states between slots: commit after verify, and snapshots for the prefix cache."""

from __future__ import annotations

import torch


def scatter_accepted(
    dst: torch.Tensor,
    src: torch.Tensor,
    dst_indices_raw: torch.Tensor,
    step_indices_raw: torch.Tensor,
    src_indices_raw: torch.Tensor | None = None,
) -> None:
    """Copy each request's state at its accepted step into its slot, in every layer.

    Args:
        dst: [layers, slots, ...], updated in place.
        src: [layers, rows, steps, ...], states after each step.
        dst_indices_raw: int [batch] slots; negative ones are skipped.
        step_indices_raw: int [batch] accepted steps; negative ones are skipped.
        src_indices_raw: int [batch] rows of src; None is 0, 1, 2, ...
    """
    steps, slots = step_indices_raw.long(), dst_indices_raw.long()
    rows = torch.arange(steps.shape[0]) if src_indices_raw is None else src_indices_raw.long()
    valid = (steps >= 0) & (steps < src.shape[2]) & (slots >= 0) & (slots < dst.shape[1]) & (rows < src.shape[1])
    keep = valid.nonzero().flatten()
    if keep.numel():
        dst[:, slots[keep]] = src[:, rows[keep], steps[keep]].to(dst.dtype)


def track_states(
    conv_states: torch.Tensor,
    ssm_states: torch.Tensor,
    cache_indices: torch.Tensor,
    mamba_track_mask: torch.Tensor,
    mamba_track_indices: torch.Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    """Copy one layer's states [slots, ...] of the marked requests into their snapshot slots, in place."""
    track_states_all_layers(
        conv_states.unsqueeze(0),
        ssm_states.unsqueeze(0),
        cache_indices,
        mamba_track_mask,
        mamba_track_indices,
        batch_size,
    )


def track_states_all_layers(
    conv_states_pool: torch.Tensor,
    ssm_states_pool: torch.Tensor,
    cache_indices: torch.Tensor,
    mamba_track_mask: torch.Tensor,
    mamba_track_indices: torch.Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    """Copy states [layers, slots, ...] of the marked requests into their snapshot slots, in place."""
    source, target = cache_indices[:batch_size].long(), mamba_track_indices[:batch_size].long()
    keep = (mamba_track_mask[:batch_size].bool() & (source >= 0) & (target >= 0)).nonzero().flatten()
    if keep.numel():
        for pool in (conv_states_pool, ssm_states_pool):
            pool[:, target[keep]] = pool[:, source[keep]]
