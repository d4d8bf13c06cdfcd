"""The patches that put trees in place of DFLASH's chain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specpilot_sglang.patching import Kind, Patch
from specpilot_sglang.plugin import counters
from specpilot_sglang.tree.gated_delta import shrink_state_pool, verify_layer
from specpilot_sglang.tree.settings import TreeSettings
from specpilot_sglang.tree.worker import TREE_NODES, TREE_STEPS, tree_worker

_FINGERPRINTS = {
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2": "4a6fd5173f764c8d",
    "sglang.srt.arg_groups.speculative_hook:_handle_dflash": "61143f903a1baeae",
    "sglang.srt.layers.attention.linear.gdn_backend:GDNAttnBackend.forward_extend": "d60a78c55ca84bef",
    "sglang.srt.mem_cache.memory_pool:MambaPool.__init__": "4658baa3f7e767b0",
}


def tree_patches(tree: TreeSettings, steps_counter: str) -> list[Patch]:
    """Return the patches of a best-first tree.

    Args:
        tree: its settings.
        steps_counter: counter of draft-and-verify steps, which the stock worker's own patch no longer reaches.
    """
    counters.declare(TREE_STEPS)
    counters.declare(TREE_NODES)
    worker, arguments, layer, pool = _FINGERPRINTS
    patches = [
        Patch(
            worker,
            Kind.SUBCLASS,
            lambda stock: tree_worker(stock, tree, steps_counter),
            _FINGERPRINTS[worker],
            "drafts, verifies and commits best-first trees",
        ),
        Patch(arguments, Kind.AROUND, _keep_tree_width, _FINGERPRINTS[arguments], "tells state pools of branches"),
    ]
    if tree.gated_delta:
        why = "keeps nodes' inputs in place of their states"
        patches += [
            Patch(layer, Kind.AROUND, verify_layer, _FINGERPRINTS[layer], why),
            Patch(pool, Kind.AROUND, shrink_state_pool, _FINGERPRINTS[pool], why),
        ]
    return patches


def _keep_tree_width(original: Callable[[Any], None], server_args: Any) -> None:
    """Stock forces one branch for DFLASH; pools and hybrid backends must know that nodes have siblings."""
    original(server_args)
    from sglang.srt.arg_groups.overrides import declare_resolution

    declare_resolution(server_args, "specpilot best-first tree", speculative_eagle_topk=2)
