"""Triton kernels of the short causal convolution over draft trees: windows gathered from ancestors, never stored."""

# Arguments are pointers and numbers that Triton specialises on; it has no types for them, nor unpacking of tuples.
# ruff: noqa: ANN001, ANN201, RUF005
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["nodes"])
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
    nodes,
    GROUP: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    BIAS: tl.constexpr,
    SILU: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Convolution of a group of a request's nodes over a block of channels, whose weights are read once."""
    request = tl.program_id(2)
    node = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    here = node < nodes
    first = (request * nodes).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    cells = here[:, None] & inside[None, :]
    target = node[:, None] * channels + channel[None, :]
    slot = tl.load(slots_ptr + request)
    if slot < 0:
        zeros = tl.zeros([GROUP, BLOCK], dtype=out_ptr.dtype.element_ty)
        tl.store(out_ptr + first * channels + target, zeros, mask=cells)
        return
    # Everything is asked for before anything is used: each use waits for what it needs.
    depth = tl.load(depths_ptr + first + node, mask=here, other=0)
    tokens, inputs, pasts, weights = (), (), (), ()
    for tap in tl.static_range(TAPS - 1):
        # The path's node at this tap; before the root it is a column of the slot's history.
        place = depth - (TAPS - 1) + tap
        at = first * WIDTH + (node * WIDTH + place)
        tokens = tokens + (tl.load(paths_ptr + at, mask=here & (place >= 0), other=-1),)
        pasts = pasts + (
            tl.load(state_ptr + slot.to(tl.int64) * slot_stride + (channel * (TAPS - 1) + tap), mask=inside, other=0.0),
        )
    for tap in tl.static_range(TAPS):
        weights = weights + (tl.load(weight_ptr + channel * TAPS + tap, mask=inside, other=0.0),)
    source = x_ptr + first * x_stride
    own = tl.load(source + (node[:, None] * x_stride + channel[None, :]), mask=cells, other=0.0)
    for tap in tl.static_range(TAPS - 1):
        there = source + (tokens[tap][:, None] * x_stride + channel[None, :])
        inputs = inputs + (tl.load(there, mask=(tokens[tap] >= 0)[:, None] & inside[None, :], other=0.0),)
    if KEEP:
        tl.store(kept_ptr + first * channels + target, own, mask=cells)
    total = tl.zeros([GROUP, BLOCK], dtype=tl.float32)
    for tap in tl.static_range(TAPS - 1):
        seen = inputs[tap].to(tl.float32)
        for column in tl.static_range(tap, TAPS - 1):
            seen = tl.where((depth + tap == column)[:, None], pasts[column].to(tl.float32)[None, :], seen)
        total += seen * weights[tap].to(tl.float32)[None, :]
    total += own.to(tl.float32) * weights[TAPS - 1].to(tl.float32)[None, :]
    if BIAS:
        total += tl.load(bias_ptr + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
    if SILU:
        total = total / (1.0 + tl.exp(-total))
    tl.store(out_ptr + first * channels + target, total.to(out_ptr.dtype.element_ty), mask=cells)


@triton.jit(do_not_specialize=["batch", "nodes"])
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
