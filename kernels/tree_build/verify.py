"""Launches the kernels around a tree's verify pass: its inputs, the accepted path, and the path's keys and values.

A launch costs the host as much as a kernel of this size runs, and small models wait for the host: what a step needs at
one point comes from one launch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton

from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths
from specpilot_sglang.kernels.tree_build.accept_kernels import accept_kernel, move_kernel
from specpilot_sglang.kernels.tree_build.tree import AcceptedPath, Trees
from specpilot_sglang.kernels.tree_build.verify_kernels import inputs_kernel, open_kernel, suffix_kernel

_BYTES = 1024


class Opened(NamedTuple):
    """What a draft block and the verify pass after it begin with.

    Attributes:
        ids, positions, slots: int64 [batch, block], tokens of the block, their places and their KV slots.
        window: int64 [batch, nodes], KV slots of a verify pass.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    window: torch.Tensor


def open_step(
    bonus: torch.Tensor,
    lengths: torch.Tensor,
    pools: torch.Tensor,
    table: torch.Tensor,
    block: int,
    nodes: int,
    mask_token: int,
) -> Opened:
    """Lay out the draft block and the verify pass of every request, in one launch.

    Args:
        bonus: int [batch], the committed tokens.
        lengths: int [batch], cached tokens before them.
        pools: int [batch], the requests' rows in `table`.
        table: int [rows, tokens], KV slots by place in the sequence, dense in the tokens.
        block: rows of the drafter's block; nodes: rows of a verify pass.
        mask_token: what the block's rows after the first carry.
    """
    batch = lengths.shape[0]
    ids, positions, slots = torch.empty(3, batch, block, dtype=torch.int64, device=lengths.device)
    window = torch.empty(batch, nodes, dtype=torch.int64, device=lengths.device)
    open_kernel[(batch,)](
        bonus, lengths, pools, table, ids, positions, slots, window, table.stride(0), table.shape[1],
        MASK_TOKEN=mask_token, BLOCK=block, NODES=nodes, SLOTS=triton.next_power_of_2(max(block, nodes)), num_warps=1,
    )  # fmt: skip
    return Opened(ids, positions, slots, window)


def write_inputs(
    trees: Trees,
    lengths: torch.Tensor,
    width: int,
    mask: torch.Tensor | None,
    paths: TreePaths | None,
    owners: bool = False,
) -> torch.Tensor:
    """Work out what a verify pass reads of its trees, in one launch.

    Args:
        trees: at most 64 nodes each.
        lengths: int [batch], cached tokens before the root.
        width: most nodes on a path, the root included.
        mask: bool, flat, room for `tree.full_mask`; only cells between nodes are written, cached tokens are seen by
            every node and SGLang's kernels do not read their cells. None where nothing reads it.
        paths: contiguous tensors that are filled as `TreePaths.of` fills them, or None.
        owners: fill `paths.owners`, too, which only a walk leaf by leaf reads.

    Returns:
        int64 [batch, nodes], the nodes' positions.
    """
    batch, nodes = trees.tokens.shape
    positions = torch.empty_like(trees.tokens)
    outs = (None,) * 4 if paths is None else (paths.nodes_of, paths.depths, paths.owners, paths.ancestors)
    slots = triton.next_power_of_2(nodes)
    inputs_kernel[(batch,)](
        trees.parents, trees.depths, lengths, positions, None if mask is None else mask.view(torch.int8), *outs,
        NODES=nodes, SLOTS=slots, WIDTH=width,
        MASK=mask is not None, PATHS=paths is not None, OWNERS=owners and paths is not None,
        num_warps=1 if slots <= 16 else 4,
    )  # fmt: skip
    return positions


def mask_cells(nodes: int, batch: int, cached: int) -> int:
    """Cells of a flat mask over `batch` trees and `cached` tokens in all."""
    return nodes * (cached + nodes * batch)


def write_suffixes(
    paths: TreePaths, slots: torch.Tensor, table: torch.Tensor, seen: torch.Tensor, ends: torch.Tensor
) -> None:
    """List the KV slots of every node's path, from the root on, as rows of a page table of single tokens.

    Args:
        paths: of the requests that are there.
        slots: int64 [requests * nodes], KV slots of their nodes.
        table: int32 [rows, at least the longest path]; rows of further requests keep what is in them.
        seen: int32 [rows], gets the length of each row; 1 for rows of further requests, which fill a graph up.
        ends: int32 [rows + 1], gets the sums of these lengths from its second entry on.
    """
    live, nodes, width = paths.nodes_of.shape
    suffix_kernel[(seen.numel() // nodes,)](
        paths.nodes_of, paths.depths, slots, table, seen, ends, live, table.stride(0),
        NODES=nodes, SLOTS=triton.next_power_of_2(nodes), WIDTH=width, num_warps=1,
    )  # fmt: skip


def accept(
    trees: Trees,
    chosen: torch.Tensor,
    lengths: torch.Tensor,
    width: int,
    slots: torch.Tensor | None = None,
    simulated: tuple[torch.Tensor, int] | None = None,
) -> AcceptedPath:
    """Walk every tree along the target's tokens, in one launch.

    Args:
        trees: the drafted trees.
        chosen: int64 [batch, nodes], the target's token after each node.
        lengths: int [batch], cached tokens before the root.
        width: longest path, the root included; at most the nodes.
        slots: int64 [batch, nodes], KV slots of each request's window; None for row numbers.
        simulated: first children int64 [batch, nodes] and the number of tokens that every step is made to emit in
            place of what the target chose, as `tree.simulate.forced` does it.
    """
    batch, nodes = trees.tokens.shape
    if slots is None:
        slots = torch.arange(batch * nodes, device=chosen.device).view(batch, nodes)
    index, front, rows, positions, locs = torch.empty(5, batch, width, dtype=torch.int64, device=chosen.device)
    lens = torch.empty(batch, dtype=torch.int32, device=chosen.device)
    bonus, new_lens = torch.empty(2, batch, dtype=torch.int64, device=chosen.device)
    emitted = torch.empty_like(trees.tokens)
    child, length = (trees.parents, 0) if simulated is None else simulated
    accept_kernel[(batch,)](
        trees.tokens, trees.parents, child, chosen.contiguous(), slots, lengths,
        index, front, rows, positions, locs, lens, emitted, bonus, new_lens,
        NODES=nodes, SLOTS=triton.next_power_of_2(nodes), WIDTH=width, LENGTH=length, num_warps=1,
    )  # fmt: skip
    return AcceptedPath(index, front, lens, emitted, bonus, new_lens, rows, positions, locs)


def move_rows(pool: Any, slots: torch.Tensor, index: torch.Tensor, lens: torch.Tensor) -> None:
    """Bring the rows of accepted nodes to the first slots of each request's window, in every buffer of a pool.

    Args:
        pool: SGLang's pool, of which `can_move` holds: addresses and row sizes of its buffers are read.
        slots: int64 [batch, nodes], rows of the window.
        index: int64 [batch, width], the accepted path; lens: int32 [batch], its length.
    """
    batch, nodes = slots.shape
    tiles = triton.cdiv(int(pool._kv_copy_config["byte_tiles"] * pool._kv_copy_config["bytes_per_tile"]), _BYTES)
    move_kernel[(batch, pool.data_ptrs.numel(), tiles)](
        pool.data_ptrs, pool.data_strides, slots, index, lens,
        NODES=nodes, WIDTH=index.shape[1], TILE=_BYTES, num_warps=4,
    )  # fmt: skip


def can_move(pool: Any) -> bool:
    """Whether `move_rows` may move this SGLang pool's keys and values: plain rows, whose addresses it keeps."""
    return bool(
        getattr(pool, "_kv_copy_config", None) is not None
        and not getattr(pool, "use_native_move_kv_cache", True)
        and getattr(pool, "native_k_scale_buffer", None) is None
        and getattr(pool, "k_scale_buffer", None) is None
    )
