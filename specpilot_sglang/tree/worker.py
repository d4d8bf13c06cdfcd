"""DFLASH's worker with a tree in place of the chain: draft a block, build trees, verify, accept, commit."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from specpilot_sglang.errors import PluginError
from specpilot_sglang.plugin import counters
from specpilot_sglang.tree.dspark import first_row, is_dspark
from specpilot_sglang.tree.penalties import Penalties, penalties_of
from specpilot_sglang.tree.settings import TreeSettings

#: Decode steps that verified trees, rows their verify passes had, and steps whose verify pass was a graph's replay.
TREE_STEPS, TREE_NODES, TREE_GRAPHS = "tree_steps", "tree_nodes_verified", "tree_graph_replays"


def steps_of_width(width: int) -> str:
    """Counter of decode steps whose trees had this many rows a request."""
    return f"tree_steps_of_{width}_rows"


class TreeWorker:
    """Mixed in before `DFlashWorkerV2`: decode steps are its own, prefill and idle steps stay stock's."""

    tree: TreeSettings
    steps_counter: str
    model_runner: Any
    penalties: Penalties | None = None

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        from sglang.srt.runtime_context import get_spec

        runner = target_worker.model_runner
        self.width = int(get_spec().speculative_num_draft_tokens)
        self._block, self.first_row = block_of(runner, self.tree)
        with self._drafting():
            super().__init__(server_args, gpu_id, nccl_port, target_worker)  # type: ignore[call-arg]
        worker: Any = self
        self.simulated_length = _check_worker(worker)
        worker.speculative_num_draft_tokens = self.width
        self.sampler: Any = None
        self._processor: Any = _logits_processor(runner)

    def alloc_memory_pool(self, *args: Any, **kwargs: Any) -> None:
        """See `BaseSpecWorker`; the target's pools are there when this is called."""
        from sglang.srt.lora.layers import unwrap_lora_layer

        from specpilot_sglang.tree.sampler import TreeSampler
        from specpilot_sglang.tree.tiers import Tiers

        stock: Any = super()
        with self._drafting():
            stock.alloc_memory_pool(*args, **kwargs)
        worker: Any = self
        runner = worker.model_runner
        self.tiers = Tiers(runner, self.tree, self._block + 1 - self.first_row)
        self.sampler = TreeSampler(self, unwrap_lora_layer(runner.model.lm_head))

    def init_attention_backends(self) -> None:
        """See `BaseSpecWorker`."""
        stock: Any = super()
        check_backend(self)
        with self._drafting():
            stock.init_attention_backends()

    def init_cuda_graphs(self) -> None:
        """See `BaseSpecWorker`; the trees are built inside the drafter's graph, the target has graphs a width."""
        from specpilot_sglang.tree.warm import warm_kernels

        stock: Any = super()
        with self._drafting():
            stock.init_cuda_graphs()
        self.tiers.capture(self.model_runner)
        warm_kernels(self)

    def _maybe_build_draft_sampler(self) -> Any:
        return self.sampler

    def _defer_target_verify_gather(self) -> None:
        """Let the target gather its logits: every node's row is read."""
        return

    def _drafting(self) -> AbstractContextManager[None]:
        """While the drafter is set up, one pass is its block wide and has no branches."""
        from sglang.srt.runtime_context import get_spec

        scope: AbstractContextManager[None] = get_spec().override(
            speculative_num_draft_tokens=self._block, speculative_eagle_topk=1
        )
        return scope

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
            prefilled = not mode.is_idle() and bool(batch.reqs)
            penalties = penalties_of(self, batch.sampling_info) if prefilled else None
            if penalties is not None:
                penalties.start(batch)
            result = stock.forward_batch_generation(
                batch, on_publish=on_publish, grammar_barrier=grammar_barrier, pp_proxy_tensors=pp_proxy_tensors
            )
            if penalties is not None:
                penalties.add_one(batch.req_pool_indices, result.next_token_ids)
            return result
        from specpilot_sglang.tree.step import tree_step

        counters.hit(self.steps_counter)
        counters.hit(TREE_STEPS)
        tier = self.tiers.of(len(batch.seq_lens))
        counters.hit(TREE_NODES, len(batch.seq_lens) * tier.width)
        counters.hit(steps_of_width(tier.width))
        tier.use(self.model_runner)
        result = tree_step(self, tier, batch, on_publish, grammar_barrier)
        if result.can_run_cuda_graph:
            counters.hit(TREE_GRAPHS)
        return result


def tree_worker(stock: type, tree: TreeSettings, steps_counter: str) -> type:
    """Return the worker class that serves trees over `stock`, SGLang's `DFlashWorkerV2`."""
    members = {"tree": tree, "steps_counter": steps_counter, "__doc__": TreeWorker.__doc__}
    return type("TreeDFlashWorker", (TreeWorker, stock), members)


def block_of(runner: Any, tree: TreeSettings) -> tuple[int, int]:
    """Rows of the drafter's block pass and the first that predicts, from its config as the target's runner keeps it."""
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config

    hf_config = runner.spec_aux_config.draft_model_config.hf_config
    trained = int(parse_dflash_draft_config(draft_hf_config=hf_config).resolve_block_size(default=16))
    first = first_row(hf_config)
    if is_dspark(hf_config):
        trained += 1  # its block size counts draft tokens, not rows
    return tree.block(trained) - 1 + first, first


def check_backend(worker: Any) -> None:
    """Refuse attention backends that cannot verify irregular trees.

    Raises:
        PluginError: names the backend and the flag.
    """
    from specpilot_sglang.tree.settings import TREE_BACKENDS

    runner = worker.model_runner
    if not str(runner.device).startswith("cuda"):
        return
    found = {runner.prefill_attention_backend_str, runner.decode_attention_backend_str}
    if not found <= set(TREE_BACKENDS):
        raise PluginError(
            f"best-first trees are verified with {' or '.join(TREE_BACKENDS)} attention, not {' and '.join(found)}",
            fix=f"give --attention-backend {TREE_BACKENDS[0]}, or set tree.kind: chain in the overlay",
        )


def _check_worker(worker: Any) -> int:
    """Refuse drafters without tree scores; return the simulated accept length, 0 for real acceptance."""
    from sglang.srt.speculative.spec_utils import SIMULATE_ACC_LEN

    simulated = float(SIMULATE_ACC_LEN)
    unsupported = {
        "a LiLiCorr head": worker.lilicorr is not None,
        "a Domino head": worker._is_domino,
        "a draft window": worker.use_compact_draft_cache,
        f"SGLANG_SIMULATE_ACC_LEN={simulated:g} (a whole number is wanted)": simulated > 0 and simulated % 1 != 0,
    }
    for what, found in unsupported.items():
        if found:
            raise PluginError(f"best-first trees do not go with {what}", fix="set tree.kind: chain in the overlay")
    return int(max(simulated, 0))


def _logits_processor(runner: Any) -> Any:
    from sglang.srt.layers.logits_processor import LogitsProcessor

    return next(m for m in runner.model.modules() if isinstance(m, LogitsProcessor))
