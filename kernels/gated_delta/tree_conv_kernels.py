"""Triton kernels of the short causal convolution over draft trees: windows gathered from ancestors, never stored."""

# Arguments are pointers and numbers that Triton specialises on; it has no types for them.
# ruff: noqa: ANN001, ANN201
# mypy: disallow-untyped-defs=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def conv_verify_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    state_ptr,
    slots_ptr,
    paths_ptr,
    depths_ptr,
    out_ptr,
    kept_ptr,
    x_stride,
    slot_stride,
    channels,
    NODES: tl.constexpr,
    SLOTS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    BIAS: tl.constexpr,
    SILU: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Convolution of all nodes of a request over a block of channels, whose weights are read once."""
    request = tl.program_id(1)
    node = tl.arange(0, SLOTS)
    here = node < NODES
    rows = (request * NODES + node).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    cells = here[:, None] & inside[None, :]
    target = rows[:, None] * channels + channel[None, :]
    slot = tl.load(slots_ptr + request)
    if slot < 0:
        tl.store(out_ptr + target, tl.zeros([SLOTS, BLOCK], dtype=out_ptr.dtype.element_ty), mask=cells)
        return
    depth = tl.load(depths_ptr + rows, mask=here, other=0)
    history = state_ptr + slot.to(tl.int64) * slot_stride + channel * (TAPS - 1)
    total = tl.zeros([SLOTS, BLOCK], dtype=tl.float32)
    for tap in tl.static_range(TAPS):
        # Place on the path that meets this tap; before the root it is a column of the slot's history.
        place = depth - (TAPS - 1) + tap
        on_path = here & (place >= 0)
        at = tl.load(paths_ptr + rows * WIDTH + tl.maximum(place, 0), mask=on_path, other=0)
        token = (request * NODES + at).to(tl.int64)
        fresh = tl.load(
            x_ptr + token[:, None] * x_stride + channel[None, :], mask=on_path[:, None] & inside[None, :], other=0.0
        )
        if KEEP:  # noqa: SIM102
            if tap == TAPS - 1:
                tl.store(kept_ptr + target, fresh, mask=cells)
        seen = fresh.to(tl.float32)
        if tap < TAPS - 1:
            column = (place + TAPS - 1)[:, None]
            before = (here & (place < 0))[:, None] & inside[None, :]
            past = tl.load(history[None, :] + column, mask=before, other=0.0)
            seen = tl.where((place >= 0)[:, None], seen, past.to(tl.float32))
        weight = tl.load(weight_ptr + channel * TAPS + tap, mask=inside, other=0.0).to(tl.float32)
        total += seen * weight[None, :]
    if BIAS:
        total += tl.load(bias_ptr + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
    if SILU:
        total = total / (1.0 + tl.exp(-total))
    tl.store(out_ptr + target, total.to(out_ptr.dtype.element_ty), mask=cells)


@triton.jit
def conv_commit_kernel(
    x_ptr,
    state_ptr,
    slots_ptr,
    path_ptr,
    lens_ptr,
    track_slots_ptr,
    track_steps_ptr,
    x_stride,
    x_layer,
    state_layer,
    slot_stride,
    batch,
    nodes,
    channels,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    TRACK: tl.constexpr,
):
    """Shift the accepted path's inputs into its slot's history; one program a layer, request and block of channels."""
    row = tl.program_id(0)
    layer = (row // batch).to(tl.int64)
    request = row % batch
    slot = tl.load(slots_ptr + request)
    if slot < 0:
        return
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    pool = state_ptr + layer * state_layer + channel * (TAPS - 1)
    home = pool + slot.to(tl.int64) * slot_stride
    inputs = x_ptr + layer * x_layer + channel
    # The snapshot goes first: it reads the history that the commit overwrites.
    for commit in tl.static_range(1 - TRACK, 2):
        if commit == 1:
            target, steps, wanted = home, tl.load(lens_ptr + request), True
        else:
            track_slot = tl.load(track_slots_ptr + request)
            target = pool + tl.maximum(track_slot, 0).to(tl.int64) * slot_stride
            steps = tl.load(track_steps_ptr + request) + 1
            wanted = (track_slot >= 0) & (steps > 0)
        for column in tl.static_range(TAPS - 1):
            # Rising columns: each reads the history at or behind its own place, so nothing is lost in place.
            place = steps - (TAPS - 1) + column
            node = tl.load(path_ptr + request * WIDTH + tl.maximum(place, 0))
            token = (request * nodes + tl.maximum(node, 0)).to(tl.int64)
            fresh = tl.load(inputs + token * x_stride, mask=inside & (place >= 0) & wanted, other=0.0)
            past = tl.load(home + (place + TAPS - 1), mask=inside & (place < 0) & wanted, other=0.0)
            seen = tl.where(place >= 0, fresh.to(tl.float32), past.to(tl.float32))
            tl.store(target + column, seen.to(state_ptr.dtype.element_ty), mask=inside & wanted)
