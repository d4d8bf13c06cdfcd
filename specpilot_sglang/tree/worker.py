"""DFLASH's worker with a tree in place of the chain: draft a block, build trees, verify, accept, commit."""

from __future__ import annotations

from typing import Any

import torch

from specpilot_sglang.errors import PluginError
from specpilot_sglang.plugin import counters
from specpilot_sglang.tree.settings import TreeSettings

#: Decode steps that verified trees, and rows their verify passes had.
TREE_STEPS, TREE_NODES = "tree_steps", "tree_nodes_verified"


class TreeWorker:
    """Mixed in before `DFlashWorkerV2`: decode steps are its own, prefill and idle steps stay stock's."""

    tree: TreeSettings
    steps_counter: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        worker: Any = self
        _check_worker(worker)
        from sglang.srt.layers.logits_processor import LogitsProcessor
        from sglang.srt.speculative.draft_worker_common import build_block_pos_offsets, make_draft_block_spec_info

        # Stock took the verify width for the block; the drafter's own block is shorter.
        worker.block_size = self.tree.block(_trained_block(worker))
        worker.draft_model.set_block_size(worker.block_size)
        worker._block_pos_offsets = build_block_pos_offsets(length=worker.block_size, device=worker.device)
        worker._draft_block_spec_info = make_draft_block_spec_info(
            draft_token_num=worker.block_size, device=worker.device
        )
        worker.speculative_num_draft_tokens = self.tree.budget
        self.max_depth = worker.block_size - 1
        model = worker.target_worker.model_runner.model
        self._processor: Any = next(m for m in model.modules() if isinstance(m, LogitsProcessor))

    def _defer_target_verify_gather(self) -> None:
        """Let the target gather its logits: every node's row is read."""
        return

    def head_logits(self, hidden: torch.Tensor, head: Any) -> torch.Tensor:
        """This rank's logits [rows, shard] of hidden states [rows, dim], as the target's own processor makes them."""
        logits: torch.Tensor = self._processor._compute_lm_head(hidden, head)
        return logits

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None, pp_proxy_tensors: Any = None
    ) -> Any:
        """One step of the scheduler; see `BaseSpecWorker`."""
        mode = batch.forward_mode
        if mode.is_extend() or batch.is_extend_in_batch or mode.is_idle() or batch.spec_info is None:
            stock: Any = super()
            return stock.forward_batch_generation(
                batch, on_publish=on_publish, grammar_barrier=grammar_barrier, pp_proxy_tensors=pp_proxy_tensors
            )
        from specpilot_sglang.tree.step import tree_step

        counters.hit(self.steps_counter)
        counters.hit(TREE_STEPS)
        counters.hit(TREE_NODES, len(batch.seq_lens) * self.tree.budget)
        return tree_step(self, batch, on_publish, grammar_barrier)


def tree_worker(stock: type, tree: TreeSettings, steps_counter: str) -> type:
    """Return the worker class that serves trees over `stock`, SGLang's `DFlashWorkerV2`."""
    members = {"tree": tree, "steps_counter": steps_counter, "__doc__": TreeWorker.__doc__}
    return type("TreeDFlashWorker", (TreeWorker, stock), members)


def _check_worker(worker: Any) -> None:
    from sglang.srt.speculative.spec_utils import SIMULATE_ACC_LEN

    unsupported = {
        "a DFlash2 selector": worker.selector is not None,
        "a LiLiCorr head": worker.lilicorr is not None,
        "a Domino head": worker._is_domino,
        "a draft window": worker.use_compact_draft_cache,
        "SGLANG_SIMULATE_ACC_LEN": SIMULATE_ACC_LEN > 0,
    }
    for what, found in unsupported.items():
        if found:
            raise PluginError(f"best-first trees do not go with {what}", fix="set tree.kind: chain in the overlay")


def _trained_block(worker: Any) -> int:
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config

    config = parse_dflash_draft_config(draft_hf_config=worker.draft_model_runner.model_config.hf_config)
    return int(config.resolve_block_size(default=16))
