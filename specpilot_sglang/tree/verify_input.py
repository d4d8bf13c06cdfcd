"""SGLang's tree verify input for irregular trees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput

from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths
from specpilot_sglang.kernels.tree_build.tree import Trees, full_mask


@dataclass
class TreeVerifyInput(EagleVerifyInput):
    """One verify pass over a batch of best-first trees.

    SGLang's hybrid backends copy tree links again after the draft only for an `EagleVerifyInput`, hence the base.
    """

    #: Paths that Gated DeltaNet layers follow, None where the target has none.
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
        trees: Trees,
        seen: torch.Tensor,
        lengths: torch.Tensor,
        max_depth: int,
        cache_locs: torch.Tensor,
        plan: object,
        gated_delta: bool = False,
    ) -> TreeVerifyInput:
        """Describe `trees` to the target.

        Args:
            trees: what the drafter proposes.
            seen: bool [batch, nodes, nodes], `trees.ancestors()`.
            lengths: int [batch], cached tokens of each request.
            max_depth: tokens of the longest path a tree may have.
            cache_locs: int64 [batch * nodes], KV slots of the nodes.
            plan: SGLang's KV plan of these slots.
            gated_delta: whether the target has Gated DeltaNet layers.
        """
        next_token, next_sibling = trees.links()
        batch, nodes = trees.tokens.shape
        index = torch.arange(batch * nodes, device=trees.tokens.device).view(batch, nodes)
        return cls(
            draft_token=trees.tokens.flatten(),
            custom_mask=full_mask(seen, lengths),
            positions=trees.positions(lengths).flatten(),
            retrieve_index=index,
            retrieve_next_token=next_token,
            retrieve_next_sibling=next_sibling,
            retrieve_cum_len=None,
            spec_steps=max_depth,
            topk=nodes,
            draft_token_num=nodes,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            seq_lens_sum=None,
            seq_lens_cpu=None,
            prepared_out_cache_loc=cache_locs,
            kv_loc_plan=plan,
            paths=TreePaths.of(trees.parents, max_depth + 1) if gated_delta else None,
        )
