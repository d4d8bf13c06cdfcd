"""The patches that put trees in place of DFLASH's chain."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from specpilot_sglang.patching import Kind, Patch
from specpilot_sglang.plugin import counters
from specpilot_sglang.tree.fa3 import fuse_suffixes, plan_suffixes
from specpilot_sglang.tree.gated_delta import plan_state_memory, shrink_state_pool, verify_layer
from specpilot_sglang.tree.settings import TreeSettings
from specpilot_sglang.tree.tiers import rows_of_all_widths, sizes_of_width
from specpilot_sglang.tree.worker import TREE_GRAPHS, TREE_NODES, TREE_STEPS, steps_of_width, tree_worker

#: Set to 0, fa3's page tables of a tree come from its mask as in stock; else from its paths (`tree.fa3`).
FA3_PATHS = "SPECPILOT_TREE_FA3_PATHS"
#: Set to 1, ancestors are attended by SGLang's fused kernel (`tree.fa3.fuse_suffixes`); no server was measured with it.
FA3_FUSED = "SPECPILOT_TREE_FA3_FUSED"

_FINGERPRINTS = {
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2": "4a6fd5173f764c8d",
    "sglang.srt.arg_groups.speculative_hook:_handle_dflash": "61143f903a1baeae",
    "sglang.srt.layers.attention.linear.gdn_backend:GDNAttnBackend.forward_extend": "d60a78c55ca84bef",
    "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner.get_spec_info": "e9e6211d0e4bdb8a",
    "sglang.srt.layers.attention.flashattention_backend:FlashAttentionBackend._apply_cuda_graph_metadata": (
        "7fc1885bc15f1c11"
    ),
    "sglang.srt.models.dflash:_radix_topk": "eb0c47278d513eaf",
    "sglang.srt.mem_cache.memory_pool:MambaPool.__init__": "4658baa3f7e767b0",
    "sglang.srt.mem_cache.kv_cache_configurator:KVCacheConfigurator._handle_max_mamba_cache": "e4fd2d32df9ac313",
    "sglang.srt.model_executor.runner.base_cuda_graph_runner:get_batch_sizes_to_capture": "774a06324221035f",
    "sglang.srt.model_executor.model_runner:ModelRunner.max_decode_logits_rows": "ddbe148fc6b5bca7",
}
_EXTEND = "sglang.srt.layers.attention.flashattention_backend:FlashAttentionBackend.forward_extend"
_SLOT_TABLE = "sglang.srt.mem_cache.allocation_sizing:get_req_to_token_extra_context_len"


def tree_patches(tree: TreeSettings, steps_counter: str) -> list[Patch]:
    """Return the patches of a best-first tree.

    Args:
        tree: its settings.
        steps_counter: counter of draft-and-verify steps, which the stock worker's own patch no longer reaches.
    """
    policy = tree.policy("cuda" if torch.cuda.is_available() else "cpu")
    for name in (TREE_STEPS, TREE_NODES):
        counters.declare(name)
    for name in (TREE_GRAPHS, *map(steps_of_width, policy.widths)):
        counters.declare(name, proof=False)
    worker, arguments, layer, graph, attention, topk, pool, memory, sizes, rows = _FINGERPRINTS

    patches = [
        Patch(
            worker,
            Kind.SUBCLASS,
            lambda stock: tree_worker(stock, tree, steps_counter),
            _FINGERPRINTS[worker],
            "drafts, verifies and commits best-first trees",
        ),
        Patch(arguments, Kind.AROUND, _keep_tree_width, _FINGERPRINTS[arguments], "tells state pools of branches"),
        Patch(graph, Kind.AROUND, _captured_input, _FINGERPRINTS[graph], "captures verify passes of trees"),
        Patch(sizes, Kind.AROUND, sizes_of_width, _FINGERPRINTS[sizes], "captures each batch size with one width"),
        Patch(rows, Kind.AROUND, rows_of_all_widths, _FINGERPRINTS[rows], "has room for the logits of every width"),
        slot_table_patch(),
    ]
    patches.append(Patch(topk, Kind.AROUND, selector_candidates, _FINGERPRINTS[topk], "finds a selector's candidates"))
    if torch.cuda.is_available() and os.environ.get(FA3_PATHS) != "0":
        # Its module needs a GPU's libraries to be imported at all.
        why = "lists each node's ancestors"
        patches.append(Patch(attention, Kind.AROUND, plan_suffixes, _FINGERPRINTS[attention], why))
        if os.environ.get(FA3_FUSED) == "1":
            patches.append(
                Patch(_EXTEND, Kind.AROUND, fuse_suffixes, "80c6c9b811ed1c10", "attends ancestors and merges")
            )
    if tree.gated_delta:
        why = "keeps nodes' inputs in place of their states"
        patches += [
            Patch(layer, Kind.AROUND, verify_layer, _FINGERPRINTS[layer], why),
            Patch(pool, Kind.AROUND, shrink_state_pool, _FINGERPRINTS[pool], why),
            Patch(memory, Kind.AROUND, functools.partial(plan_state_memory, policy), _FINGERPRINTS[memory], why),
        ]
    return patches


def selector_candidates(
    original: Callable[..., tuple[Any, Any]], scores: Any, k: int, *args: Any, **kwargs: Any
) -> tuple[Any, Any]:
    """In place of DFlash2's `_radix_topk`: FlashInfer compiles its kernel with nvcc while graphs are captured."""
    if scores.is_cuda:
        from specpilot_sglang.kernels.tree_build.best import best_tokens

        values, indices, _ = best_tokens(scores, k)
        return values.to(scores.dtype), indices
    values, indices = scores.topk(k, dim=-1)
    return values, indices


def slot_table_patch() -> Patch:
    """The patch that gives requests' slot tables room at the context limit; a long chain needs it, too."""
    return Patch(
        _SLOT_TABLE, Kind.AROUND, room_behind_context, "3ec5827c11b9ba54", "has slots past the longest context"
    )


def room_behind_context(original: Callable[[], int]) -> int:
    """In place of `get_req_to_token_extra_context_len`: entries of a request's slot table past the longest context.

    Each decode step of DFLASH reserves two verify passes behind the tokens whose results are known. Stock's table has
    room for one and 4: near the context limit slots are written into the table of the request in the next row.
    """
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_page_size
    from sglang.srt.runtime_context import get_spec

    return max(original(), 2 * int(get_spec().speculative_num_draft_tokens) + get_alloc_page_size() - 1)


def _captured_input(original: Callable[..., Any], runner: Any, num_tokens: int) -> Any:
    """In place of `DecodeCudaGraphRunner.get_spec_info`: the target's graphs verify trees, the drafter's blocks."""
    target = runner.model_runner
    if target.is_draft_worker or not target.spec_algorithm.is_dflash_family():
        return original(runner, num_tokens)
    from specpilot_sglang.tree.buffers import buffers_of
    from specpilot_sglang.tree.verify_input import TreeVerifyInput

    nodes = runner.captured_req_width
    room = buffers_of(target).rooms[nodes]
    return TreeVerifyInput.captured(nodes, room.depth, num_tokens // nodes, room.paths, target.device)


def _keep_tree_width(original: Callable[[Any], None], server_args: Any) -> None:
    """Stock forces one branch for DFLASH; pools and hybrid backends must know that nodes have siblings."""
    original(server_args)
    from sglang.srt.arg_groups.overrides import declare_resolution

    declare_resolution(server_args, "specpilot best-first tree", speculative_eagle_topk=2)
