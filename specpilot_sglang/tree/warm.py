"""Compiles what a step launches outside of graphs while the server starts, not when a width is first met."""

from __future__ import annotations

from typing import Any

import torch

from specpilot_sglang.tree.tiers import Tier


def warm_kernels(worker: Any) -> None:
    """Launch the kernels of a step once for each width; the KV slots they write are padding's.

    A batch of one is enough: what differs between batches is no part of what these kernels are compiled for.

    Args:
        worker: the tree worker, its pools allocated and its graphs captured.
    """
    if not str(worker.model_runner.device).startswith("cpu"):
        for tier in worker.tiers.all():
            _warm(worker, tier)


def _warm(worker: Any, tier: Tier) -> None:
    from specpilot_sglang.kernels.tree_build import verify
    from specpilot_sglang.tree.step import kv_pool, kv_rows

    runner = worker.model_runner
    table = runner.req_to_token_pool.req_to_token
    nothing = torch.zeros(1, dtype=torch.int64, device=table.device)
    opened = verify.open_step(
        nothing, nothing, nothing, table, int(worker.block_size), tier.width, int(worker._mask_token_id)
    )
    made, paths, _ = tier.views(1)
    mask = torch.empty(verify.mask_cells(tier.width, 1, 0), dtype=torch.bool, device=table.device)
    verify.write_inputs(made.trees, nothing, tier.depth + 1, mask, paths)
    if paths is not None:
        pages = torch.zeros(tier.width, tier.width, dtype=torch.int32, device=table.device)
        seen, ends = pages[:, 0].contiguous(), torch.zeros(tier.width + 1, dtype=torch.int32, device=table.device)
        verify.write_suffixes(paths, opened.window.flatten(), pages, seen, ends)
    ruled = (made.child, worker.simulated_length) if worker.simulated_length else None
    chosen = torch.zeros_like(made.trees.tokens)
    found = verify.accept(made.trees, chosen, nothing, tier.depth + 1, opened.window, ruled)
    rows = kv_rows(kv_pool(worker))
    if rows is not None:
        # A path of the root alone moves nothing.
        verify.move_rows(rows, opened.window, found.index, torch.ones_like(found.lens))
