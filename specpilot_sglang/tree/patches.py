"""The patches that put trees in place of DFLASH's chain."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from specpilot_sglang.patching import Kind, Patch
from specpilot_sglang.plugin import counters
from specpilot_sglang.tree.fa3 import plan_suffixes
from specpilot_sglang.tree.gated_delta import plan_state_memory, shrink_state_pool, verify_layer
from specpilot_sglang.tree.settings import TreeSettings
from specpilot_sglang.tree.worker import TREE_GRAPHS, TREE_NODES, TREE_STEPS, block_of, tree_worker

#: Set to 1, fa3's page tables of a tree come from its paths (`tree.fa3`); unset, from its mask as in stock.
FA3_PATHS = "SPECPILOT_TREE_FA3_PATHS"

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
}


def tree_patches(tree: TreeSettings, steps_counter: str) -> list[Patch]:
    """Return the patches of a best-first tree.

    Args:
        tree: its settings.
        steps_counter: counter of draft-and-verify steps, which the stock worker's own patch no longer reaches.
    """
    for name in (TREE_STEPS, TREE_NODES, TREE_GRAPHS):
        counters.declare(name)
    worker, arguments, layer, graph, attention, topk, pool, memory = _FINGERPRINTS

    def captured(original: Callable[..., Any], runner: Any, num_tokens: int) -> Any:
        return _captured_input(original, runner, num_tokens, tree)

    patches = [
        Patch(
            worker,
            Kind.SUBCLASS,
            lambda stock: tree_worker(stock, tree, steps_counter),
            _FINGERPRINTS[worker],
            "drafts, verifies and commits best-first trees",
        ),
        Patch(arguments, Kind.AROUND, _keep_tree_width, _FINGERPRINTS[arguments], "tells state pools of branches"),
        Patch(graph, Kind.AROUND, captured, _FINGERPRINTS[graph], "captures verify passes of trees"),
    ]
    if not torch.cuda.is_available():
        patches.append(Patch(topk, Kind.AROUND, topk_anywhere, _FINGERPRINTS[topk], "finds a selector's candidates"))
    if os.environ.get(FA3_PATHS) == "1":
        # Its module needs a GPU's libraries to be imported at all.
        why = "lists each node's ancestors"
        patches.append(Patch(attention, Kind.AROUND, plan_suffixes, _FINGERPRINTS[attention], why))
    if tree.gated_delta:
        why = "keeps nodes' inputs in place of their states"
        patches += [
            Patch(layer, Kind.AROUND, verify_layer, _FINGERPRINTS[layer], why),
            Patch(pool, Kind.AROUND, shrink_state_pool, _FINGERPRINTS[pool], why),
            Patch(memory, Kind.AROUND, plan_state_memory, _FINGERPRINTS[memory], why),
        ]
    return patches


def topk_anywhere(
    original: Callable[..., tuple[Any, Any]], scores: Any, k: int, *args: Any, **kwargs: Any
) -> tuple[Any, Any]:
    """In place of DFlash2's `_radix_topk`, whose FlashInfer kernel knows CUDA alone: torch's own elsewhere."""
    if scores.is_cuda:
        return original(scores, k, *args, **kwargs)
    values, indices = scores.topk(k, dim=-1)
    return values, indices


def _captured_input(original: Callable[..., Any], runner: Any, num_tokens: int, tree: TreeSettings) -> Any:
    """In place of `DecodeCudaGraphRunner.get_spec_info`: the target's graphs verify trees, the drafter's blocks."""
    target = runner.model_runner
    if target.is_draft_worker or not target.spec_algorithm.is_dflash_family():
        return original(runner, num_tokens)
    from specpilot_sglang.tree.buffers import buffers_of
    from specpilot_sglang.tree.verify_input import TreeVerifyInput

    nodes = runner.captured_req_width
    return TreeVerifyInput.captured(
        nodes, block_of(target, tree) - 1, num_tokens // nodes, buffers_of(target).paths, target.device
    )


def _keep_tree_width(original: Callable[[Any], None], server_args: Any) -> None:
    """Stock forces one branch for DFLASH; pools and hybrid backends must know that nodes have siblings."""
    original(server_args)
    from sglang.srt.arg_groups.overrides import declare_resolution

    declare_resolution(server_args, "specpilot best-first tree", speculative_eagle_topk=2)
