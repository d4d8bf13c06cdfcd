"""Tensors that captured graphs of the verify pass read and write: paths of the trees, and inputs of their nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths

_NAME = "_specpilot_tree_buffers"


class KeptInputs:
    """Inputs of all nodes of a verify pass for each Gated DeltaNet layer, [layers, rows, ...].

    Attributes:
        x: convolution inputs; mixed: its outputs, q, k and v side by side; a, b: gate projections.
        a_log, dt_bias: float32 [layers, value heads], the layers' parameters as of the last `gates`.
    """

    def __init__(self, layers: list[Any], rows: int, dtype: torch.dtype, device: Any) -> None:
        layer = layers[0]
        width, heads = layer.q_dim + layer.k_dim + layer.v_dim, layer.num_v_heads
        self.layers, self.rows = layers, rows
        self.x, self.mixed = (torch.zeros(len(layers), rows, width, dtype=dtype, device=device) for _ in range(2))
        self.a, self.b = (torch.zeros(len(layers), rows, heads, dtype=dtype, device=device) for _ in range(2))
        self.a_log, self.dt_bias = torch.zeros(2, len(layers), heads, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of what grows with the rows."""
        return sum(t.numel() * t.element_size() for t in (self.x, self.mixed, self.a, self.b))

    def split(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of q, k [..., key heads, dim] and v [..., value heads, dim] in rows [..., q | k | v]."""
        layer = self.layers[0]
        q, k, v = mixed.split([layer.q_dim, layer.k_dim, layer.v_dim], -1)
        lead = mixed.shape[:-1]
        return (
            q.view(*lead, layer.num_q_heads, layer.head_q_dim),
            k.view(*lead, layer.num_k_heads, layer.head_k_dim),
            v.view(*lead, layer.num_v_heads, layer.head_v_dim),
        )

    def gates(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The layers' gate parameters as they are now: a weight update may have changed them."""
        with torch.no_grad():
            _gather([layer.A_log for layer in self.layers], self.a_log)
            _gather([layer.dt_bias for layer in self.layers], self.dt_bias)
        return self.a_log, self.dt_bias


@dataclass(frozen=True)
class Room:
    """What passes of one width share.

    Attributes:
        paths: paths of as many trees as a batch may have; None on a CPU where the target has no Gated DeltaNet layers.
        index: int64 [requests, width], rows in order.
        depth: tokens from the root to the deepest node.
    """

    paths: TreePaths | None
    index: torch.Tensor
    depth: int


class TreeBuffers:
    """What one target runner's verify passes share.

    Attributes:
        tiers: who asked for them; knows which number of requests has which width.
        rooms: by width.
        kept: inputs of Gated DeltaNet layers, None where the target has none; passes of all widths write it.
    """

    def __init__(self, runner: Any, tiers: Any, shapes: dict[int, tuple[int, int]], gated_delta: bool) -> None:
        self.tiers = tiers
        self.rooms: dict[int, Room] = {}
        self.kept: KeptInputs | None = None
        for width, (requests, longest) in shapes.items():
            index = torch.arange(requests * width, device=runner.device).view(requests, width)
            wanted = gated_delta or index.is_cuda
            paths = TreePaths.empty(requests, width, longest, runner.device) if wanted else None
            self.rooms[width] = Room(paths, index, longest - 1)
        if gated_delta:
            layers = sorted(_linear_layers(runner), key=lambda layer: int(layer.layer_id))
            rows = max(width * requests for width, (requests, _) in shapes.items())
            self.kept = KeptInputs(layers, rows, runner.dtype, runner.device)


def most_requests(runner: Any) -> int:
    """Requests a decode batch may have, rows that fill a captured graph up included."""
    from sglang.srt.runtime_context import get_exec

    config = get_exec().graph.cuda_graph_config
    captured = config.decode.bs if config is not None else None
    return int(max([runner.req_to_token_pool.size, *(captured or [])]))


def captured_sizes(runner: Any, width: int) -> tuple[int, ...]:
    """Batch sizes that graphs are captured for, rising; none on a CPU. Ask before `make_buffers`."""
    from sglang.srt.runtime_context import get_exec

    config = get_exec().graph.cuda_graph_config
    if str(runner.device).startswith("cpu") or config is None or not config.decode.bs:
        return ()
    from sglang.srt.model_executor.runner import base_cuda_graph_runner

    return tuple(base_cuda_graph_runner.get_batch_sizes_to_capture(runner, width)[0])


def buffers_of(runner: Any, *otherwise: Any) -> Any:
    """The `TreeBuffers` that `make_buffers` gave this runner, or `otherwise`."""
    return getattr(runner, _NAME, *otherwise)


def make_buffers(runner: Any, tiers: Any, shapes: dict[int, tuple[int, int]], gated_delta: bool) -> TreeBuffers:
    """Allocate a target runner's buffers, before any graph is captured.

    Args:
        runner: SGLang's model runner of the target, with its pools.
        tiers: kept beside them.
        shapes: by width, most requests of a pass and most nodes on a path.
        gated_delta: whether the target has Gated DeltaNet layers.
    """
    buffers = TreeBuffers(runner, tiers, shapes, gated_delta)
    setattr(runner, _NAME, buffers)
    return buffers


def kept_bytes(config: Any, rows: int, layers: int, width: int) -> int:
    """Bytes that the kept inputs of `rows` nodes take, for SGLang's memory plan.

    Args:
        config: the target's text config.
        rows: nodes of all requests.
        layers: Gated DeltaNet layers.
        width: bytes of an activation.
    """
    key = config.linear_num_key_heads * config.linear_key_head_dim
    value = config.linear_num_value_heads * config.linear_value_head_dim
    return layers * rows * width * 2 * (2 * key + value + config.linear_num_value_heads)


def _gather(rows: list[torch.Tensor], out: torch.Tensor) -> None:
    """Copy rows [heads] to `out` [rows, heads]: one launch, two where the type differs, whatever their number."""
    if rows[0].dtype == out.dtype:
        torch.cat(rows, out=out.view(-1))
    else:
        out.view(-1).copy_(torch.cat(rows))


def _linear_layers(runner: Any) -> list[Any]:
    from sglang.srt.layers.radix_linear_attention import RadixLinearAttention

    return [module for module in runner.model.modules() if isinstance(module, RadixLinearAttention)]
