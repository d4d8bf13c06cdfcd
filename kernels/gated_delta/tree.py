"""Gated DeltaNet over draft trees: verify all nodes in two launches, commit the accepted path of all layers in one.

Between the two only the layers' inputs of each node are kept. With Qwen3.5-27B's shapes that is 41 KB a node and
layer where a stored state is 3.1 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from specpilot_sglang.kernels.gated_delta.ref import L2_EPS
from specpilot_sglang.kernels.gated_delta.tree_block_kernel import block_verify_kernel
from specpilot_sglang.kernels.gated_delta.tree_conv_kernels import conv_commit_kernel, conv_verify_kernel
from specpilot_sglang.kernels.gated_delta.tree_kernels import commit_kernel, verify_kernel
from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths
from specpilot_sglang.kernels.gated_delta.tree_solve_kernel import BAND, solve_kernel

_TILE = 32
#: State rows a program, key columns at a time, and stages of `verify`.
_PLAN = (64, 32, 2)
#: Key columns that the sums among nodes take at a time.
_SOLVE_COLUMNS = 64
#: Registers a thread up to 32 rows a tree, so that six programs share a multiprocessor: all of 8 requests at once.
_REGISTERS = 80
_CHANNELS = 1024
#: Nodes and channels that one program of the convolution takes.
_CONV_NODES, _CONV_CHANNELS = 8, 256


@dataclass(frozen=True)
class Path:
    """The accepted path of each request, and where its state goes.

    Attributes:
        nodes: int32 [batch, width], from the root on; read up to `lens`.
        lens: int32 [batch], accepted nodes.
        slots: int32 [batch], the requests' slots; negative rows are padding and touch nothing.
        track_slots, track_steps: int32 [batch] or None: after this many-th node (from 0) the state is also copied to
            this slot, for the prefix cache; negative for none.
    """

    nodes: torch.Tensor
    lens: torch.Tensor
    slots: torch.Tensor
    track_slots: torch.Tensor | None = None
    track_steps: torch.Tensor | None = None


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
    plan: tuple[int, int, int] = _PLAN,
) -> torch.Tensor:
    """Outputs of every node, each from its own path; states stay as they are.

    One read of the state serves all nodes; what does not need it comes from a kernel before, which on Hopper ends
    while the state is read already. Arithmetic is float32 from the state on (products of BF16 inputs are exact, those
    of float32 numbers run as three TF32 or six BF16 parts); nothing is rounded to the state's type between nodes.

    Args:
        q, k: [batch * nodes, key heads, key dim], not normalised; rows may be strided, alike in q, k and v.
        v: [batch * nodes, value heads, value dim].
        a, b: [batch * nodes, value heads], gate projections; rows may be strided.
        a_log, dt_bias: [value heads].
        states: [slots, value heads, value dim, key dim], float32 or bfloat16.
        slots: int32 [batch]; negative rows are padding and come back as zeros.
        paths: the trees.
        keep: contiguous [batch * nodes, value heads] each, into which a and b are copied.
        plan: rows of a state that one program takes, key columns it reads at a time, and reads on their way.

    Returns:
        [batch * nodes, value heads, value dim] in v's dtype.
    """
    batch, nodes, width = paths.nodes_of.shape
    heads, dim = v.shape[1], v.shape[2]
    _check(k, v, states, batch * nodes)
    if not q.stride(0) == k.stride(0) == v.stride(0) or a.stride(1) != 1 or b.stride(1) != 1:
        raise ValueError("q, k and v must be views of one row, and gate projections dense in the heads")
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    size, parts = max(16, triton.next_power_of_2(nodes)), v.dtype == torch.bfloat16 and v.is_cuda
    kept_a, kept_b = (None, None) if keep is None else keep
    reading = v.new_empty(batch, heads, 3 if parts else 1, size, size, dtype=v.dtype if parts else torch.float32)
    scales = v.new_empty(batch, heads, 3, size, dtype=torch.float32)
    # What q, k and v share makes one pointer do for keys and queries.
    apart = (q.data_ptr() - k.data_ptr()) // q.element_size()
    same: dict[str, Any] = {
        "KEY_HEADS": k.shape[1], "VALUE_HEADS": heads, "KEY_DIM": k.shape[2], "NODES": nodes, "SLOTS": size,
        "PRECISION": "ieee" if v.dtype == torch.float32 else "tf32x3", "PARTS": parts, "OVERLAP": _overlaps(v.device),
    }  # fmt: skip
    solve_kernel[(heads, batch)](
        k, a, b, a_log, dt_bias, slots, paths.ancestors, paths.depths, kept_a, kept_b, reading, scales,
        apart, q.stride(0), a.stride(0), b.stride(0), CHUNK=min(_SOLVE_COLUMNS, k.shape[2]),
        BANDS=triton.cdiv(width, BAND.value), EPS=L2_EPS, KEEP=keep is not None, num_warps=4, **same,
    )  # fmt: skip
    tile, chunk = min(plan[0], dim), min(plan[1], k.shape[2])
    options: dict[str, Any] = {"launch_pdl": True} if same["OVERLAP"] else {}
    if parts and size <= 32:
        options["maxnreg"] = _REGISTERS
    block_verify_kernel[(dim // tile, heads, batch)](
        k, v, states, slots, reading, scales, out, apart, q.stride(0), states.stride(0),
        VALUE_DIM=dim, TILE=tile, CHUNK=chunk, num_warps=4, num_stages=plan[2], **same, **options,
    )  # fmt: skip
    return out


def walk(
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
) -> torch.Tensor:
    """`verify` leaf by leaf and token by token: bit for bit what plain decoding of each path gives.

    Every leaf's path is computed anew from the committed state, and rounded to the state's type after each token.
    Slower than `verify`; arguments and result as there.
    """
    batch, nodes, width = paths.nodes_of.shape
    heads, dim = v.shape[1], v.shape[2]
    _check(k, v, states, batch * nodes)
    out = torch.zeros(v.shape, dtype=v.dtype, device=v.device)
    tile = min(_TILE, dim)
    verify_kernel[(batch * nodes, heads, dim // tile)](
        q, k, v, a.contiguous(), b.contiguous(), a_log, dt_bias, states, slots,
        paths.nodes_of, paths.depths, paths.owners, out,
        q.stride(0), k.stride(0), v.stride(0), states.stride(0), nodes,
        KEY_HEADS=k.shape[1], VALUE_HEADS=heads, KEY_DIM=k.shape[2], VALUE_DIM=dim,
        TILE=tile, WIDTH=width, EPS=L2_EPS, num_warps=4,
    )  # fmt: skip
    return out


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
    """Replay every request's accepted path into its slot, in all layers, with the arithmetic of `walk`.

    Args:
        k: [layers, batch * nodes, key heads, key dim]; v: [layers, batch * nodes, value heads, value dim].
        a, b: [layers, batch * nodes, value heads].
        a_log, dt_bias: [layers, value heads].
        states: [layers, slots, value heads, value dim, key dim], updated in place.
        path: what was accepted.
        nodes: rows a tree.
    """
    layers, batch = k.shape[0], path.slots.shape[0]
    heads, dim = v.shape[2], v.shape[3]
    _check(k[0], v[0], states[0], batch * nodes)
    tile = min(_TILE, dim)
    track = path.track_slots is not None
    if a.stride() != b.stride() or a.stride()[1:] != (heads, 1):
        raise ValueError("gate projections must be laid out alike, a layer's rows one after the other")
    commit_kernel[(layers * batch, heads, dim // tile)](
        k, v, a, b, a_log, dt_bias, states, path.slots, path.nodes, path.lens, path.track_slots, path.track_steps,
        k.stride(1), v.stride(1), k.stride(0), v.stride(0), a.stride(0), states.stride(0), states.stride(1),
        batch, nodes,
        KEY_HEADS=k.shape[2], VALUE_HEADS=heads, KEY_DIM=k.shape[3], VALUE_DIM=dim,
        TILE=tile, WIDTH=path.nodes.shape[1], EPS=L2_EPS, TRACK=track, num_warps=4,
    )  # fmt: skip


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
    """Causal convolution of every node over its own path.

    Args:
        x: [batch * nodes, channels], rows may be strided.
        weight, bias: [channels, taps], [channels] or None.
        states: [slots, channels, taps - 1], oldest input first, left as they are.
        slots: int32 [batch]; negative rows are padding and come back as zeros.
        paths: the trees.
        silu: apply SiLU to the result.
        out: contiguous [batch * nodes, channels] for the result.
        keep: the same, into which x is copied; rows of padding are left as they are.

    Returns:
        [batch * nodes, channels] in x's dtype.
    """
    batch, nodes, width = paths.nodes_of.shape
    channels, taps = weight.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    if states.stride()[1:] != (taps - 1, 1) or x.stride(1) != 1:
        raise ValueError("inputs must be dense in the channels, histories contiguous")
    group, block = (
        min(_CONV_NODES, triton.next_power_of_2(nodes)),
        min(_CONV_CHANNELS, triton.next_power_of_2(channels)),
    )
    conv_verify_kernel[(triton.cdiv(channels, block), triton.cdiv(nodes, group), batch)](
        x, weight, bias, states, slots, paths.nodes_of, paths.depths, out, keep,
        x.stride(0), states.stride(0), channels, nodes,
        GROUP=group, TAPS=taps, BLOCK=block, WIDTH=width,
        BIAS=bias is not None, SILU=silu, KEEP=keep is not None,
    )  # fmt: skip
    return out


def conv_commit(x: torch.Tensor, states: torch.Tensor, path: Path, nodes: int) -> None:
    """Shift every request's accepted inputs into its slot, in all layers.

    Args:
        x: [layers, batch * nodes, channels], inputs of the convolution.
        states: [layers, slots, channels, taps - 1], updated in place.
        path: what was accepted.
        nodes: rows a tree.
    """
    layers, batch = x.shape[0], path.slots.shape[0]
    channels, taps = states.shape[2], states.shape[3] + 1
    block = min(_CHANNELS, triton.next_power_of_2(channels))
    conv_commit_kernel[(layers * batch, triton.cdiv(channels, block))](
        x, states, path.slots, path.nodes, path.lens, path.track_slots, path.track_steps,
        x.stride(1), x.stride(0), states.stride(0), states.stride(1), batch, nodes, channels,
        TAPS=taps, BLOCK=block, WIDTH=path.nodes.shape[1], TRACK=path.track_slots is not None,
    )  # fmt: skip


def _overlaps(device: torch.device) -> bool:
    """Tell whether a kernel may start while the one before it ends (programmatic dependent launch, from Hopper on)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def _check(k: torch.Tensor, v: torch.Tensor, states: torch.Tensor, rows: int) -> None:
    """Refuse shapes that the kernels would read wrongly.

    Raises:
        ValueError: names the shape.
    """
    heads, dim, key_dim = states.shape[1:]
    if k.shape[0] != rows or v.shape != (rows, heads, dim) or k.shape[2] != key_dim or heads % k.shape[1]:
        raise ValueError(f"k {tuple(k.shape)}, v {tuple(v.shape)} do not fit states {tuple(states.shape)}, rows {rows}")
    powers = all(n & (n - 1) == 0 for n in (dim, key_dim))
    if not powers or states.stride()[1:] != (dim * key_dim, key_dim, 1):
        raise ValueError(f"states {tuple(states.shape)} must be contiguous, with powers of two as head sizes")
