"""Gated DeltaNet layers under trees: keep each node's inputs between verify and commit, never its state.

SGLang stores a recurrent state and a convolution window a node; here the layer's inputs are kept and the accepted path
is replayed from them, so the state memory that speculation needs falls from a state to a row of activations a node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from specpilot_sglang.kernels.gated_delta import tree, tree_ref
from specpilot_sglang.tree.accept import Accepted

_KEPT = "_specpilot_nodes"


class KeptInputs:
    """Inputs of all nodes of a verify pass, [layers, rows, ...]; `rows` is requests times nodes.

    Attributes:
        x: convolution inputs; mixed: its outputs, q, k and v side by side; a, b: gate projections.
        a_log, dt_bias: float32 [layers, value heads], the layers' parameters.
    """

    def __init__(self, layers: int, rows: int, layer: Any, x: torch.Tensor, a: torch.Tensor) -> None:
        def empty(width: int, like: torch.Tensor) -> torch.Tensor:
            return torch.empty(layers, rows, width, dtype=like.dtype, device=like.device)

        self.rows = rows
        self.x, self.mixed = empty(x.shape[1], x), empty(x.shape[1], x)
        self.a, self.b = empty(layer.num_v_heads, a), empty(layer.num_v_heads, a)
        self.a_log = torch.zeros(layers, layer.num_v_heads, device=x.device)
        self.dt_bias = torch.zeros_like(self.a_log)
        self.layer = layer

    def split(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of q, k [..., key heads, dim] and v [..., value heads, dim] in rows [..., q | k | v]."""
        layer = self.layer
        q, k, v = mixed.split([layer.q_dim, layer.k_dim, layer.v_dim], -1)
        lead = mixed.shape[:-1]
        return (
            q.view(*lead, layer.num_q_heads, layer.head_q_dim),
            k.view(*lead, layer.num_k_heads, layer.head_k_dim),
            v.view(*lead, layer.num_v_heads, layer.head_v_dim),
        )


def verify_layer(
    original: Callable[..., Any],
    backend: Any,
    layer: Any,
    forward_batch: Any,
    mixed_qkv: Any,
    a: torch.Tensor,
    b: torch.Tensor,
    **kwargs: Any,
) -> Any:
    """In place of `GDNAttnBackend.forward_extend` where a verify pass carries trees; stock's own otherwise."""
    paths = getattr(forward_batch.spec_info, "paths", None)
    if paths is None or not forward_batch.forward_mode.is_target_verify():
        return original(backend, layer, forward_batch, mixed_qkv, a, b, **kwargs)
    batch, nodes, _ = paths.nodes_of.shape
    pool = backend.req_to_token_pool
    index, cache = pool.mamba2_layer_index(layer.layer_id), pool.mamba2_layer_cache(layer.layer_id)
    kept = _kept(backend, layer, batch * nodes, mixed_qkv, a)
    rows = slice(0, batch * nodes)
    slots = backend.forward_metadata.mamba_cache_indices[:batch].int()
    ops = _ops(mixed_qkv)
    x = mixed_qkv[rows]
    kept.x[index, rows], kept.a[index, rows], kept.b[index, rows] = x, a[rows], b[rows]
    kept.a_log[index], kept.dt_bias[index] = layer.A_log, layer.dt_bias
    mixed = ops.conv_verify(
        x, layer.conv_weights, layer.bias, cache.conv[0], slots, paths, silu=layer.activation in ("silu", "swish")
    )
    kept.mixed[index, rows] = mixed
    q, k, v = kept.split(mixed)
    gates = (kept.a[index, rows], kept.b[index, rows], kept.a_log[index], kept.dt_bias[index])
    out = ops.verify(q, k, v, *gates, cache.temporal, slots, paths)
    whole = out.new_zeros(1, mixed_qkv.shape[0], *out.shape[1:])
    whole[0, rows] = out
    return whole


def commit_layers(worker: Any, batch: Any, accepted: Accepted, nodes: int) -> None:
    """Replay every request's accepted path into its state slot, in all layers, and snapshot at track boundaries."""
    backend = worker.model_runner.attn_backend.linear_attn_backend
    kept: KeptInputs = backend.__dict__[_KEPT]
    size = len(accepted.lens)
    rows = slice(0, size * nodes)
    cache = backend.req_to_token_pool.get_speculative_mamba2_params_all_layers()
    path = tree.Path(
        accepted.index.clamp(min=0).int().contiguous(),
        accepted.lens.int(),
        backend.forward_metadata.mamba_cache_indices[:size].int(),
        *_track(backend, batch, accepted),
    )
    _, k, v = kept.split(kept.mixed[:, rows])
    gates = (kept.a[:, rows], kept.b[:, rows], kept.a_log, kept.dt_bias)
    ops = _ops(k)
    ops.commit(k, v, *gates, cache.temporal, path, nodes)
    ops.conv_commit(kept.x[:, rows], cache.conv[0], path, nodes)


def shrink_state_pool(original: Callable[..., None], pool: Any, **kwargs: Any) -> None:
    """In place of `MambaPool.__init__`: room for one node a request, which only passes without a tree ever use."""
    if kwargs.get("speculative_num_draft_tokens") is not None and not kwargs["cache_params"].is_kda:
        kwargs["speculative_num_draft_tokens"] = 1
    original(pool, **kwargs)


def _track(backend: Any, batch: Any, accepted: Accepted) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Snapshot slots and the path's step that reaches a boundary of the prefix cache, -1 where none does."""
    if batch.mamba_track_indices is None:
        return None, None
    from sglang.srt.runtime_context import mamba_track_grid

    grid = mamba_track_grid(batch.tree_cache.page_size)
    before = batch.seq_lens.long()
    after = before + accepted.lens
    step = after // grid * grid - before - 1
    crosses = (before // grid != after // grid) & (step >= 0)
    slots = backend._translate_mamba_indices(batch.mamba_track_indices)
    return slots.int(), torch.where(crosses, step, -1).int()


def _kept(backend: Any, layer: Any, rows: int, x: torch.Tensor, a: torch.Tensor) -> KeptInputs:
    kept: KeptInputs | None = backend.__dict__.get(_KEPT)
    if kept is None or kept.rows < rows:
        kept = KeptInputs(len(backend.req_to_token_pool.mamba_map), rows, layer, x, a)
        backend.__dict__[_KEPT] = kept
    return kept


def _ops(x: torch.Tensor) -> Any:
    return tree if x.is_cuda else tree_ref
