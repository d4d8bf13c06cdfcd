"""SGLang's tree verify input for irregular trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput

from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths
from specpilot_sglang.kernels.tree_build.launch import LinkedTrees
from specpilot_sglang.kernels.tree_build.tree import full_mask


@dataclass
class TreeVerifyInput(EagleVerifyInput):
    """One verify pass over a batch of best-first trees.

    SGLang's hybrid backends copy tree links again after the draft only for an `EagleVerifyInput`, hence the base.
    """

    #: Paths that Gated DeltaNet layers and FlashAttention's page tables follow, None where nothing reads them.
    paths: TreePaths | None = None

    @property
    def max_tree_depth(self) -> int:
        """Nodes of the longest path, the root included."""
        return self.spec_steps + 1

    @property
    def tree_topk(self) -> int:
        """SGLang's mark of an irregular tree."""
        return -1

    @classmethod
    def of(
        cls,
        made: LinkedTrees,
        lengths: torch.Tensor,
        cached: int,
        max_depth: int,
        cache_locs: torch.Tensor,
        plan: object,
        paths: TreePaths | None,
        index: torch.Tensor | None = None,
    ) -> TreeVerifyInput:
        """Describe trees to the target.

        Args:
            made: what the drafter proposes.
            lengths: int [batch], cached tokens of each request.
            cached: an upper bound of their sum, known to the host.
            max_depth: tokens of the longest path a tree may have.
            cache_locs: int64 [batch * nodes], KV slots of the nodes.
            plan: SGLang's KV plan of these slots.
            paths: where the trees' paths go, None where nothing reads them.
            index: int64 [batch, nodes], rows in order, to save a launch.
        """
        trees = made.trees
        batch, nodes = trees.tokens.shape
        device = trees.tokens.device
        if device.type == "cuda":
            from specpilot_sglang.kernels.tree_build.verify import mask_cells, write_inputs

            mask = torch.empty(mask_cells(nodes, batch, cached), dtype=torch.bool, device=device)
            positions = write_inputs(trees, lengths, max_depth + 1, mask, paths)
        else:
            mask, positions = full_mask(trees.ancestors(), lengths), trees.positions(lengths)
            paths = None if paths is None else TreePaths.of(trees.parents, max_depth + 1)
        return cls(
            draft_token=trees.tokens.flatten(),
            custom_mask=mask,
            positions=positions.flatten(),
            retrieve_index=torch.arange(batch * nodes, device=device).view(batch, nodes) if index is None else index,
            retrieve_next_token=made.child,
            retrieve_next_sibling=made.sibling,
            retrieve_cum_len=None,
            prepared_out_cache_loc=cache_locs,
            kv_loc_plan=plan,
            paths=paths,
            **_shape(nodes, max_depth),
        )

    @classmethod
    def captured(cls, nodes: int, max_depth: int, batch: int, room: TreePaths | None, device: Any) -> TreeVerifyInput:
        """What a CUDA graph of `batch` trees is captured with: shapes, and the paths that replays will read.

        Mask, positions and links are the attention backend's own buffers in a graph; it copies them before a replay.
        """
        return cls(
            draft_token=None,
            custom_mask=torch.ones(1, dtype=torch.bool, device=device),
            positions=None,
            retrieve_index=None,
            retrieve_next_token=None,
            retrieve_next_sibling=None,
            retrieve_cum_len=None,
            paths=None if room is None else room.first(batch),
            **_shape(nodes, max_depth),
        )


def _shape(nodes: int, max_depth: int) -> dict[str, Any]:
    return {
        "spec_steps": max_depth,
        "topk": nodes,
        "draft_token_num": nodes,
        "capture_hidden_mode": CaptureHiddenMode.FULL,
        "seq_lens_sum": None,
        "seq_lens_cpu": None,
    }
