"""Torch twin of the tree kernels, with their signatures: their oracle, and what a machine without a GPU runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specpilot_sglang.kernels.gated_delta import conv_ref, ref
from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths

if TYPE_CHECKING:
    from specpilot_sglang.kernels.gated_delta.tree import Path


def verify(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    paths: TreePaths,
    keep: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """See `tree.walk`. Node states live only inside this call."""
    if keep is not None:
        keep[0].copy_(a)
        keep[1].copy_(b)
    batch, nodes, _ = paths.nodes_of.shape
    g, beta = ref.gates(a, b, a_log, dt_bias)
    pq, pk = ref.prepare_qk(q, k, v.shape[1])
    rows = [x.reshape(batch, nodes, *x.shape[1:]) for x in (pq, pk, v.float(), g, beta)]
    live = slots >= 0
    start = states[slots.long().clamp(min=0)].float()
    parents, requests = paths.parents(), torch.arange(batch, device=v.device)
    found = start.new_empty(batch, nodes, *start.shape[1:])
    outputs = start.new_zeros(batch, nodes, *v.shape[1:])
    for node in range(nodes):
        parent = parents[:, node]
        before = torch.where((parent < 0)[:, None, None, None], start, found[requests, parent.clamp(min=0)])
        outputs[:, node], after = ref.step(before, *(x[:, node] for x in rows))
        # The slot's own type, as plain decoding would leave it.
        found[:, node] = after.to(states.dtype).float()
    return (outputs * live[:, None, None, None]).view(v.shape).to(v.dtype)


def commit(
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    states: torch.Tensor,
    path: Path,
    nodes: int,
) -> None:
    """See `tree.commit`."""
    keep = (path.slots >= 0).nonzero().flatten()
    slots, lens = path.slots[keep].long(), path.lens[keep]
    for layer in range(k.shape[0]):
        g, beta = ref.gates(a[layer], b[layer], a_log[layer], dt_bias[layer])
        _, key = ref.prepare_qk(k[layer], k[layer], v.shape[2])
        state = states[layer][slots].float()
        for step in range(int(lens.max()) if keep.numel() else 0):
            token = keep * nodes + path.nodes[keep, step].long()
            inputs = (key[token], key[token], v[layer][token].float(), g[token], beta[token])
            after = ref.step(state, *inputs)[1].to(states.dtype).float()
            state = torch.where((step < lens)[:, None, None, None], after, state)
            if path.track_slots is not None and path.track_steps is not None:
                wanted = (path.track_steps[keep] == step) & (step < lens) & (path.track_slots[keep] >= 0)
                states[layer, path.track_slots[keep][wanted].long()] = state[wanted].to(states.dtype)
        states[layer, slots] = state.to(states.dtype)


def conv_verify(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    states: torch.Tensor,
    slots: torch.Tensor,
    paths: TreePaths,
    silu: bool = True,
    out: torch.Tensor | None = None,
    keep: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `tree.conv_verify`."""
    if keep is not None:
        keep.copy_(x)
    batch, nodes, _ = paths.nodes_of.shape
    rows = x.reshape(batch, nodes, -1)
    history = states[slots.long().clamp(min=0)]
    found, _ = conv_ref.causal_conv1d(rows, weight, bias, history, paths.parents(), silu=silu)
    found = (found * (slots >= 0)[:, None, None]).reshape(x.shape)
    return found if out is None else out.copy_(found)


def conv_commit(x: torch.Tensor, states: torch.Tensor, path: Path, nodes: int) -> None:
    """See `tree.conv_commit`."""
    columns = states.shape[3]
    for request in (path.slots >= 0).nonzero().flatten().tolist():
        slot, count = int(path.slots[request]), int(path.lens[request])
        tokens = request * nodes + path.nodes[request, :count].long()
        line = torch.cat([states[:, slot], x[:, tokens].transpose(1, 2).to(states.dtype)], 2)
        if path.track_slots is not None and path.track_steps is not None:
            target, steps = int(path.track_slots[request]), int(path.track_steps[request]) + 1
            if target >= 0 and 0 < steps <= count:
                states[:, target] = line[:, :, steps : steps + columns]
        states[:, slot] = line[:, :, count:]
