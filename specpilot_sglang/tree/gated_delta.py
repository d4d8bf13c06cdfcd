"""Gated DeltaNet layers under trees: keep each node's inputs between verify and commit, never its state.

SGLang stores a recurrent state and a convolution window a node; here the layer's inputs are kept and the accepted path
is replayed from them, so the state memory that speculation needs falls from a state to a row of activations a node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from specpilot_sglang.kernels.gated_delta import tree, tree_ref
from specpilot_sglang.kernels.tree_build.tree import AcceptedPath
from specpilot_sglang.tree.buffers import buffers_of, kept_bytes
from specpilot_sglang.tree.widths import WidthPolicy


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
    kept = buffers_of(backend._model_runner).kept
    if kept is None or batch * nodes > kept.rows:
        raise RuntimeError(f"a verify pass of {batch} x {nodes} nodes is more than was kept room for")
    rows = slice(0, batch * nodes)
    slots = backend.forward_metadata.mamba_cache_indices[:batch].int()
    ops = _ops(mixed_qkv)
    mixed = ops.conv_verify(
        mixed_qkv[rows], layer.conv_weights, layer.bias, cache.conv[0], slots, paths,
        silu=layer.activation in ("silu", "swish"), out=kept.mixed[index, rows], keep=kept.x[index, rows],
    )  # fmt: skip
    out = ops.verify(
        *kept.split(mixed), a[rows], b[rows], layer.A_log, layer.dt_bias, cache.temporal, slots, paths,
        keep=(kept.a[index, rows], kept.b[index, rows]),
    )  # fmt: skip
    if mixed_qkv.shape[0] == batch * nodes:
        return out[None]
    whole = out.new_zeros(1, mixed_qkv.shape[0], *out.shape[1:])
    whole[0, rows] = out
    return whole


def commit_layers(worker: Any, batch: Any, accepted: AcceptedPath, nodes: int) -> None:
    """Replay every request's accepted path into its state slot, in all layers, and snapshot at track boundaries."""
    backend = worker.model_runner.attn_backend.linear_attn_backend
    kept = buffers_of(worker.model_runner).kept
    if kept is None:
        raise RuntimeError("the target has Gated DeltaNet layers, but their inputs were not kept")
    size = len(accepted.lens)
    rows = slice(0, size * nodes)
    cache = backend.req_to_token_pool.get_speculative_mamba2_params_all_layers()
    path = tree.Path(
        accepted.index.int(),
        accepted.lens,
        backend.forward_metadata.mamba_cache_indices[:size].int(),
        *_track(backend, batch, accepted),
    )
    _, k, v = kept.split(kept.mixed[:, rows])
    ops = _ops(k)
    ops.commit(k, v, kept.a[:, rows], kept.b[:, rows], *kept.gates(), cache.temporal, path, nodes)
    ops.conv_commit(kept.x[:, rows], cache.conv[0], path, nodes)


def shrink_state_pool(original: Callable[..., None], pool: Any, **kwargs: Any) -> None:
    """In place of `MambaPool.__init__`: room for one node of one request; no pass over a tree reads or writes it."""
    if kwargs.get("speculative_num_draft_tokens") is not None and not kwargs["cache_params"].is_kda:
        kwargs["speculative_num_draft_tokens"] = 1
        kwargs["spec_state_size"] = 1
    original(pool, **kwargs)


def plan_state_memory(
    policy: WidthPolicy, original: Callable[..., float], configurator: Any, total_rest_memory: float
) -> float:
    """In place of `KVCacheConfigurator._handle_max_mamba_cache`: reserve what is kept, not a state a node.

    Args:
        policy: how many rows a pass has.
        total_rest_memory: GB (2**30 bytes) that pools may have.

    Returns:
        GB that are left for keys and values.
    """
    from sglang.srt.runtime_context import get_schedule, get_spec

    params = configurator.mambaish_config.mamba2_cache_params
    rows = policy.most_rows(max(1, get_schedule().max_running_requests or 1))
    # Inputs of all nodes, and the two states that `shrink_state_pool` leaves.
    kept = kept_bytes(configurator.mambaish_config, rows, len(params.layers), 2) + 2 * params.mamba_cache_per_req
    with get_spec().override(speculative_num_draft_tokens=0):
        return original(configurator, total_rest_memory - kept / (1 << 30))


def _track(backend: Any, batch: Any, accepted: AcceptedPath) -> tuple[torch.Tensor | None, torch.Tensor | None]:
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


def _ops(x: torch.Tensor) -> Any:
    return tree if x.is_cuda else tree_ref
