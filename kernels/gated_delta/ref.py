"""Torch oracle of Gated DeltaNet's recurrence: recurrent form over chains and trees, and the chunked form.

One head's state S is [value dim, key dim]. A token with key k, value v, log decay g and write strength beta does

    S <- exp(g) S;   S <- S + beta (v - S k) k^T;   output = S q

(Yang et al., "Gated Delta Networks", arXiv 2412.06464). Everything is computed in float32, or in float64 where
the inputs are float64; nothing here knows of SGLang.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

#: Added to the sum of squares when queries and keys are normalised.
L2_EPS = 1e-6


def gates(
    a: torch.Tensor, b: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decay and write strength of each token and value head.

    Args:
        a, b: [..., value heads], the layer's gate projections.
        a_log, dt_bias: [value heads] parameters.

    Returns:
        g = -exp(a_log) * softplus(a + dt_bias) and beta = sigmoid(b), float32 (float64 for float64 inputs).
    """
    wide = _wide(a)
    g = -a_log.to(wide).exp() * F.softplus(a.to(wide) + dt_bias.to(wide))
    return g, b.to(wide).sigmoid()


def prepare_qk(q: torch.Tensor, k: torch.Tensor, value_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """L2-normalise q and k [..., heads, key dim], scale q by key_dim ** -0.5, repeat heads to `value_heads`."""
    wide = _wide(q)
    q, k = (x.to(wide) * torch.rsqrt(x.to(wide).square().sum(-1, keepdim=True) + L2_EPS) for x in (q, k))
    repeat = value_heads // q.shape[-2]
    q = q * q.shape[-1] ** -0.5
    return q.repeat_interleave(repeat, -2), k.repeat_interleave(repeat, -2)


def step(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token.

    Args:
        state: [..., heads, value dim, key dim].
        q, k: [..., heads, key dim], prepared by `prepare_qk`.
        v: [..., heads, value dim].
        g, beta: [..., heads].

    Returns:
        (output [..., heads, value dim], new state).
    """
    state = state * g.exp()[..., None, None]
    delta = (v - (state * k[..., None, :]).sum(-1)) * beta[..., None]
    state = state + delta[..., :, None] * k[..., None, :]
    return (state * q[..., None, :]).sum(-1), state


def recurrent(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    parents: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token by token, each continuing its parent's state.

    Args:
        q, k: [batch, tokens, heads, key dim], prepared by `prepare_qk`.
        v: [batch, tokens, heads, value dim].
        g, beta: [batch, tokens, heads].
        state: [batch, heads, value dim, key dim] before the first token.
        parents: int [batch, tokens]; parent of each node inside the batch row, negative for the initial state.
            A parent precedes its children. None is a chain.

    Returns:
        (outputs [batch, tokens, heads, value dim], states [batch, tokens, heads, value dim, key dim] after each
        token), in the state's wide dtype.
    """
    batch, tokens = v.shape[:2]
    wide = _wide(v)
    current = state.to(wide)
    states = current.new_empty(batch, tokens, *state.shape[1:])
    outputs = current.new_empty(batch, tokens, *v.shape[2:])
    rows = torch.arange(batch, device=v.device)
    for t in range(tokens):
        if parents is not None:
            parent = parents[:, t].long()
            current = torch.where((parent < 0)[:, None, None, None], state.to(wide), states[rows, parent.clamp(min=0)])
        outputs[:, t], current = step(current, q[:, t], k[:, t], v[:, t].to(wide), g[:, t], beta[:, t])
        states[:, t] = current
    return outputs, states


def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    chunk: int = 64,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same recurrence over a chain, `chunk` tokens at a time (a triangular solve in place of the token loop).

    Args:
        q, k: [tokens, heads, key dim], prepared by `prepare_qk`.
        v: [tokens, heads, value dim].
        g, beta: [tokens, heads].
        state: [heads, value dim, key dim].
        chunk: tokens a chunk.

    Returns:
        (outputs [tokens, heads, value dim], final state, states [chunks, heads, value dim, key dim] before each
        chunk).
    """
    wide = _wide(v)
    current = state.to(wide)
    before, outputs = [], []
    for start in range(0, v.shape[0], chunk):
        part = slice(start, start + chunk)
        before.append(current)
        out, current = _one_chunk(q[part], k[part], v[part].to(wide), g[part], beta[part], current)
        outputs.append(out)
    return torch.cat(outputs), current, torch.stack(before)


def _one_chunk(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    decay = g.transpose(0, 1).cumsum(-1)
    strength = beta.transpose(0, 1)[..., None]
    # Decay from token j to token i; the upper triangle is masked before exp, where it would overflow.
    gap = (decay[:, :, None] - decay[:, None, :]).tril()
    ratio = gap.exp().tril()
    mixing = (strength * (k @ k.transpose(1, 2)) * ratio).tril(-1)
    eye = torch.eye(mixing.shape[-1], dtype=mixing.dtype, device=mixing.device)
    carried = (k * decay.exp()[..., None]) @ state.transpose(1, 2)
    writes = torch.linalg.solve_triangular(eye + mixing, strength * (v - carried), upper=False, unitriangular=True)
    out = (q * decay.exp()[..., None]) @ state.transpose(1, 2) + ((q @ k.transpose(1, 2)) * ratio) @ writes
    last = decay[:, -1:]
    new_state = state * last.exp()[..., None] + writes.transpose(1, 2) @ (k * (last - decay).exp()[..., None])
    return out.transpose(0, 1), new_state


def parents_from_links(next_token: torch.Tensor, next_sibling: torch.Tensor) -> torch.Tensor:
    """Parents of SGLang's first-child / next-sibling tree links.

    Args:
        next_token: int [batch, nodes], first child of each node or -1.
        next_sibling: int [batch, nodes], next sibling of each node or -1.

    Returns:
        int64 [batch, nodes]; -1 for the root, node 0.
    """
    parents = torch.full_like(next_token, -1, dtype=torch.int64)
    rows = torch.arange(next_token.shape[0], device=next_token.device)
    for node in range(next_token.shape[1]):
        for link, parent in (
            (next_token[:, node].long(), torch.full_like(parents[:, 0], node)),
            (next_sibling[:, node].long(), parents[:, node]),
        ):
            has = link >= 0
            parents[rows[has], link[has]] = parent[has]
    return parents


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
