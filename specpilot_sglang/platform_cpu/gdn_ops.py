"""Gated DeltaNet kernels with SGLang's call signatures, computed by the torch oracle."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from specpilot_sglang.kernels.gated_delta import conv_ref, ref


def gdn_gating(
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decay and write strength, float32 [1, tokens, value heads] each, from a and b [tokens, value heads]."""
    g, strength = ref.gates(a, b, A_log, dt_bias)
    return g.unsqueeze(0), strength.unsqueeze(0)


def conv1d_prefill(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_states: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens_cpu: list[int],
    cache_indices: torch.Tensor,
    has_initial_state: torch.Tensor | None = None,
    activation: str | bool | None = "silu",
    **unused: Any,
) -> torch.Tensor:
    """Causal convolution of packed sequences; leaves each sequence's last inputs in its slot.

    Args:
        x: [channels, tokens], sequences back to back at `query_start_loc` (int [batch + 1]).
        weight, bias: [channels, width], [channels] or None.
        conv_states: [slots, channels, width - 1], updated in place; negative `cache_indices` are padding.
        has_initial_state: bool [batch]; without it a sequence starts from zeros.

    Returns:
        [channels, tokens].
    """
    out = torch.zeros_like(x)
    bounds = query_start_loc.tolist()
    for i, slot in enumerate(cache_indices.tolist()):
        start, end = bounds[i], bounds[i + 1]
        if slot < 0 or start == end:
            continue
        state = conv_states[slot : slot + 1]
        if has_initial_state is not None and not bool(has_initial_state[i]):
            state = torch.zeros_like(state)
        tokens = x[:, start:end].t().unsqueeze(0)
        result, states = conv_ref.causal_conv1d(tokens, weight, bias, state, silu=bool(activation))
        out[:, start:end] = result[0].t()
        conv_states[slot] = states[0, -1]
    return out


def conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | bool | None = None,
    cache_seqlens: torch.Tensor | None = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accept_tokens: torch.Tensor | None = None,
    intermediate_conv_window: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    retrieve_next_token: torch.Tensor | None = None,
    retrieve_next_sibling: torch.Tensor | None = None,
    retrieve_parent_token: torch.Tensor | None = None,
    **unused: Any,
) -> torch.Tensor:
    """Convolution of one token a request (decode) or of a draft block or tree (verify).

    Args:
        x: [batch, channels] or [batch, channels, tokens].
        conv_state: [slots, channels, width - 1]; decode shifts the new input in. Verify leaves it alone: the
            window of the accepted node is committed from `intermediate_conv_window` later.
        conv_state_indices: int [batch]; negative rows are padding and write nothing.
        intermediate_conv_window: [rows, tokens, channels, width - 1], each node's window, written at
            `intermediate_state_indices`.
        retrieve_next_token, retrieve_next_sibling: tree links int [batch, tokens]; None is a chain.
        retrieve_parent_token: int [batch, tokens], filled with the parents (0 for the root).

    Returns:
        x's shape.
    """
    if cache_seqlens is not None or num_accept_tokens is not None:
        raise NotImplementedError("circular convolution states are not used by Gated DeltaNet in SGLang 0.5.23")
    block = x.unsqueeze(-1) if x.dim() == 2 else x
    slots = _slots(conv_state_indices, block.shape[0])
    parents = None
    if retrieve_next_token is not None:
        assert retrieve_next_sibling is not None
        assert retrieve_parent_token is not None
        parents = ref.parents_from_links(retrieve_next_token, retrieve_next_sibling)
        retrieve_parent_token.copy_(parents.clamp(min=0))
    state = conv_state[slots.clamp(min=0)]
    out, states = conv_ref.causal_conv1d(block.transpose(1, 2), weight, bias, state, parents, silu=bool(activation))
    live = (slots >= 0).nonzero().flatten()
    if intermediate_conv_window is None:
        conv_state[slots[live]] = states[live, -1].to(conv_state.dtype)
    else:
        rows = _slots(intermediate_state_indices, block.shape[0])[live]
        # A chain's windows overlap in memory (stock stores them once), so steps are written in order.
        for step in range(block.shape[2]):
            intermediate_conv_window[rows, step] = states[live, step].to(intermediate_conv_window.dtype)
    return out.transpose(1, 2).reshape(x.shape)


def chunk_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    initial_state_indices: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    inplace_update: bool = True,
) -> tuple[torch.Tensor, None, torch.Tensor]:
    """Chunked prefill of packed sequences.

    Args:
        q, k: [1, tokens, key heads, key dim]; v: [1, tokens, value heads, value dim].
        g, beta: [1, tokens, value heads].
        initial_state: [slots, value heads, value dim, key dim], read and updated at `initial_state_indices`.
        cu_seqlens: int [batch + 1].

    Returns:
        (outputs [1, tokens, value heads, value dim] in v's dtype, None, states before each 64-token chunk of each
        sequence [1, chunks, value heads, value dim, key dim] in float32).
    """
    assert use_qk_l2norm_in_kernel
    assert not head_first
    assert initial_state is not None
    assert cu_seqlens is not None
    out = torch.zeros_like(v)
    q, k = ref.prepare_qk(q, k, v.shape[2])
    starts = []
    bounds = cu_seqlens.tolist()
    slots = _slots(initial_state_indices, len(bounds) - 1).tolist()
    for i, slot in enumerate(slots):
        part = slice(bounds[i], bounds[i + 1])
        if part.start == part.stop:
            continue
        state = initial_state[max(slot, 0)] if slot >= 0 else torch.zeros_like(initial_state[0])
        result, last, before = ref.chunked(q[0, part], k[0, part], v[0, part], g[0, part], beta[0, part], state)
        out[0, part] = result.to(v.dtype)
        starts.append(before)
        if inplace_update and slot >= 0:
            initial_state[slot] = last.to(initial_state.dtype)
    return out, None, torch.cat(starts).unsqueeze(0)


def recurrent_update(
    A_log: torch.Tensor,
    a: torch.Tensor,
    dt_bias: torch.Tensor,
    softplus_beta: float,
    softplus_threshold: float,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    b: torch.Tensor,
    initial_state_source: torch.Tensor,
    initial_state_indices: torch.Tensor,
    cu_seqlens: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    disable_state_update: bool = False,
    intermediate_states_buffer: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    retrieve_parent_token: torch.Tensor | None = None,
    **unused: Any,
) -> torch.Tensor:
    """Decode (one token a request) and verify (a block or tree a request), token by token.

    Args:
        q, k: [1, tokens, key heads, key dim]; v: [1, tokens, value heads, value dim]; a, b: [tokens, value heads].
        initial_state_source: [slots, value heads, value dim, key dim]; read at `initial_state_indices`, and
            written there unless `disable_state_update`. Negative indices start from zero and write nothing.
        cu_seqlens: int [batch + 1]; every request has the same number of tokens.
        intermediate_states_buffer: [rows, tokens, value heads, value dim, key dim]: each node's state, written at
            `intermediate_state_indices`.
        retrieve_parent_token: int [batch, tokens], node 0 is the root; None is a chain.

    Returns:
        [1, tokens, value heads, value dim] in v's dtype.
    """
    assert use_qk_l2norm_in_kernel
    batch = cu_seqlens.shape[0] - 1
    tokens, heads = v.shape[1], v.shape[2]
    width = tokens // batch
    slots = _slots(initial_state_indices, batch)
    live = (slots >= 0).nonzero().flatten()
    g, strength = ref.gates(a.view(tokens, heads), b.view(tokens, heads), A_log, dt_bias)
    pq, pk = ref.prepare_qk(q[0], k[0], heads)
    state = initial_state_source[slots.clamp(min=0)].float() * (slots >= 0)[:, None, None, None]
    parents = None
    if retrieve_parent_token is not None:
        parents = retrieve_parent_token[:batch].long().clone()
        parents[:, 0] = -1
    rq, rk, rv, rg, rb = (x.view(batch, width, *x.shape[1:]) for x in (pq, pk, v[0], g, strength))
    out, states = ref.recurrent(rq, rk, rv, rg, rb, state, parents)
    if intermediate_states_buffer is not None:
        rows = _slots(intermediate_state_indices, batch)[live]
        intermediate_states_buffer[rows, :width] = states[live].to(intermediate_states_buffer.dtype)
    if not disable_state_update:
        initial_state_source[slots[live]] = states[live, -1].to(initial_state_source.dtype)
    return out.reshape(v.shape).to(v.dtype)


def gated_rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    z: torch.Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
    activation: str = "swish",
) -> torch.Tensor:
    """RMSNorm(x) * act(z) of rows [rows, dim] in float32, returned in x's dtype."""
    if not (is_rms_norm and norm_before_gate and group_size is None and bias is None):
        raise NotImplementedError("only the ungrouped RMSNorm before the gate runs on the CPU platform")
    out = F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps)
    if z is not None:
        gate = z.float()
        out = out * (gate.sigmoid() if activation == "sigmoid" else F.silu(gate))
    return out.to(x.dtype)


def split_qkvz_ba(
    mixed_qkvz: torch.Tensor, mixed_ba: torch.Tensor, num_heads_qk: int, num_heads_v: int, head_qk: int, head_v: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split `[q | k | v | z]` and `[b | a]` rows into qkv [tokens, ...], z [tokens, heads, dim], b and a."""
    qkv_dim = 2 * num_heads_qk * head_qk + num_heads_v * head_v
    qkv, z = mixed_qkvz.split([qkv_dim, num_heads_v * head_v], dim=-1)
    b, a = mixed_ba.split([num_heads_v, num_heads_v], dim=-1)
    return qkv.contiguous(), z.reshape(-1, num_heads_v, head_v), b.contiguous(), a.contiguous()


def sigmoid_mul(
    attn_output: torch.Tensor, gate: torch.Tensor, inplace: bool = False, quant: bool = False
) -> torch.Tensor:
    """attn_output * sigmoid(gate); gate may be [tokens, heads, dim] where attn_output is flat."""
    assert not quant
    return attn_output * gate.reshape(attn_output.shape).sigmoid()


def _slots(indices: torch.Tensor | None, batch: int) -> torch.Tensor:
    return torch.arange(batch) if indices is None else indices[:batch].long()
