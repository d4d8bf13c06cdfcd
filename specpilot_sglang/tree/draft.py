"""The drafter's block pass, and the trees that are made of what it says."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.lora.layers import unwrap_lora_layer
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
    enable_num_token_non_padded,
)
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_utils import draft_tp_context

from specpilot_sglang.kernels.tree_build.launch import LinkedTrees
from specpilot_sglang.kernels.tree_build.verify import Opened
from specpilot_sglang.tree.tiers import Tier


def draft_trees(worker: Any, tier: Tier, batch: Any, opened: Opened) -> LinkedTrees:
    """Run the drafter once over a block of the committed token and masks, and build a tree a request.

    Args:
        worker: the tree worker.
        tier: the batch's.
        batch: SGLang's decode batch; `batch.spec_info` holds the committed tokens.
        opened: its block, see `open_step`.

    Returns:
        The tier's own buffers, which the next call overwrites.
    """
    ids, positions, slots, _ = opened
    size, block = ids.shape
    host, total = _host_lengths(batch, block)
    forward = ForwardBatch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        batch_size=size,
        input_ids=ids.flatten(),
        req_pool_indices=batch.req_pool_indices,
        seq_lens=batch.seq_lens,
        out_cache_loc=slots.flatten(),
        seq_lens_sum=total,
        seq_lens_cpu=host,
        positions=positions.flatten(),
        input_embeds=_embed(worker, ids),
        spec_algorithm=SpeculativeAlgorithm.DFLASH,
        spec_info=worker._draft_block_spec_info,
        capture_hidden_mode=CaptureHiddenMode.NULL,
        num_token_non_padded=(
            torch.full((), size * block, dtype=torch.int32, device=ids.device)
            if enable_num_token_non_padded()
            else None
        ),
        global_num_token_non_padded_cpu=size * block,
        can_run_decode_cuda_graph=batch.can_run_decode_cuda_graph,
    )
    plan(worker, batch, slots).bind(forward, worker.draft_model_runner.kv_index_translator)
    with torch.inference_mode(), draft_tp_context(worker.draft_parallel_layout):
        output = worker.draft_model_runner.forward(forward)
        if worker._draft_sampler is None or not output.can_run_graph:
            worker.sampler(output.logits_output.hidden_states, forward.input_ids)
    return tier.views(size).trees


def plan(worker: Any, batch: Any, slots: torch.Tensor) -> Any:
    """SGLang's KV plan of a window of slots [batch, width] behind each request's cached tokens."""
    host = batch.seq_lens_cpu
    return worker.target_worker.model_runner.kv_index_translator.plan(
        req_pool_indices=batch.req_pool_indices,
        seq_lens=batch.seq_lens,
        seq_lens_cpu=batch.spec_info.nxt_kv_lens_cpu if host is None else host,
        write_virtual=slots.flatten(),
        read_extent=slots.shape[1],
    )


def open_step(worker: Any, batch: Any, nodes: int) -> Opened:
    """The drafter's block, and the KV slots that the scheduler reserved behind each request's tokens.

    Args:
        worker: the tree worker.
        batch: SGLang's decode batch.
        nodes: rows a request has in the verify pass.
    """
    block, mask = int(worker.block_size), int(worker._mask_token_id)
    table = worker.model_runner.req_to_token_pool.req_to_token
    lengths, pools, bonus = batch.seq_lens, batch.req_pool_indices, batch.spec_info.bonus_tokens
    if table.is_cuda:
        from specpilot_sglang.kernels.tree_build import verify

        return verify.open_step(bonus, lengths, pools, table, block, nodes, mask)
    ids = torch.full((len(lengths), block), mask, dtype=torch.int64, device=table.device)
    ids[:, 0] = bonus
    places = lengths.long()[:, None] + torch.arange(max(block, nodes), device=table.device)
    slots = table[pools.long()[:, None], places.clamp(max=table.shape[1] - 1)].long()
    return Opened(ids, places[:, :block], slots[:, :block].contiguous(), slots[:, :nodes].contiguous())


def _embed(worker: Any, ids: torch.Tensor) -> torch.Tensor:
    module = unwrap_lora_layer(worker.target_worker.model_runner.model.get_input_embeddings())
    if worker._full_embed_gpu is not None:
        embeds = torch.nn.functional.embedding(ids, worker._full_embed_gpu)
    else:
        embeds = module(ids)
    if worker._noise_embed_scale != 1.0:
        embeds = embeds * worker._noise_embed_scale
    return embeds.view(-1, embeds.shape[-1])


def _host_lengths(batch: Any, block: int) -> tuple[torch.Tensor, int]:
    """Upper bounds of the requests' lengths, on the host, and of their sum."""
    if batch.seq_lens_cpu is not None:
        host = batch.seq_lens_cpu + block
        return host, int(host.sum())
    return batch.spec_info.nxt_kv_lens_cpu, int(batch.spec_info.nxt_kv_lens_sum)
