"""Tensors that captured graphs of the verify pass read and write: paths of the trees, and inputs of their nodes."""

from __future__ import annotations

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
        torch.stack([layer.A_log.detach().float() for layer in self.layers], out=self.a_log)
        torch.stack([layer.dt_bias.detach().float() for layer in self.layers], out=self.dt_bias)
        return self.a_log, self.dt_bias


class TreeBuffers:
    """What one target runner's verify passes share.

    Attributes:
        paths: paths of as many trees as a batch may have; None on a CPU where the target has no Gated DeltaNet layers.
        kept: inputs of Gated DeltaNet layers, None where the target has none.
        index: int64 [requests, nodes], rows in order.
    """

    def __init__(self, runner: Any, nodes: int, width: int, gated_delta: bool) -> None:
        self.nodes = nodes
        self.paths: TreePaths | None = None
        self.kept: KeptInputs | None = None
        requests = most_requests(runner)
        self.index = torch.arange(requests * nodes, device=runner.device).view(requests, nodes)
        if gated_delta or self.index.is_cuda:
            self.paths = TreePaths.empty(requests, nodes, width, runner.device)
        if gated_delta:
            layers = sorted(_linear_layers(runner), key=lambda layer: int(layer.layer_id))
            self.kept = KeptInputs(layers, requests * nodes, runner.dtype, runner.device)


def most_requests(runner: Any) -> int:
    """Requests a decode batch may have, rows that fill a captured graph up included."""
    from sglang.srt.runtime_context import get_exec

    config = get_exec().graph.cuda_graph_config
    captured = config.decode.bs if config is not None else None
    return int(max([runner.req_to_token_pool.size, *(captured or [])]))


def buffers_of(runner: Any) -> TreeBuffers:
    """The buffers that `make_buffers` gave this runner."""
    buffers: TreeBuffers = getattr(runner, _NAME)
    return buffers


def make_buffers(runner: Any, nodes: int, width: int, gated_delta: bool) -> TreeBuffers:
    """Allocate a target runner's buffers, before any graph is captured.

    Args:
        runner: SGLang's model runner of the target, with its pools.
        nodes: rows a tree.
        width: most nodes on a path.
        gated_delta: whether the target has Gated DeltaNet layers.
    """
    buffers = TreeBuffers(runner, nodes, width, gated_delta)
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


def _linear_layers(runner: Any) -> list[Any]:
    from sglang.srt.layers.radix_linear_attention import RadixLinearAttention

    return [module for module in runner.model.modules() if isinstance(module, RadixLinearAttention)]
