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


def draft_trees(worker: Any, batch: Any) -> LinkedTrees:
    """Run the drafter once over a block of the committed token and masks, and build a tree a request.

    Args:
        worker: the tree worker.
        batch: SGLang's decode batch; `batch.spec_info` holds the committed tokens.

    Returns:
        The tier's own buffers, which the next call overwrites.
    """
    ids, positions, slots = _block(worker, batch)
    size, block = ids.shape
    host = _host_lengths(batch, block)
    forward = ForwardBatch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        batch_size=size,
        input_ids=ids.flatten(),
        req_pool_indices=batch.req_pool_indices,
        seq_lens=batch.seq_lens,
        out_cache_loc=slots.flatten(),
        seq_lens_sum=int(host.sum()),
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
    made: LinkedTrees = worker.tiers.of(size).trees.first(size)
    return made


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


def window(worker: Any, batch: Any, nodes: int) -> torch.Tensor:
    """KV slots that the scheduler reserved behind each request's tokens, int64 [batch, nodes]."""
    table = worker.model_runner.req_to_token_pool.req_to_token
    if table.is_cuda:
        from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_uniform_func

        size = len(batch.seq_lens)
        slots: torch.Tensor = assign_extend_cache_locs_uniform_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=table,
            start_offset=batch.seq_lens,
            batch_size=size,
            draft_token_num=nodes,
            device=table.device,
        )
        return slots.view(size, nodes)
    columns = batch.seq_lens.long()[:, None] + torch.arange(nodes, device=table.device)
    return table[batch.req_pool_indices.long()[:, None], columns].long()


def _block(worker: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Input ids, positions and KV slots of the block, int64 [batch, block] each."""
    size, block = len(batch.seq_lens), int(worker.block_size)
    device = batch.seq_lens.device
    if device.type == "cuda":
        from sglang.kernels.ops.speculative.dflash import _prepare_dflash_draft_block_unchecked

        ids, positions, slots = torch.empty(3, size, block, dtype=torch.int64, device=device)
        _prepare_dflash_draft_block_unchecked(
            bonus_tokens=batch.spec_info.bonus_tokens.view(-1),
            prefix_lens=batch.seq_lens.view(-1),
            req_pool_indices=batch.req_pool_indices.view(-1),
            req_to_token=worker.model_runner.req_to_token_pool.req_to_token,
            block_ids_out=ids,
            positions_out=positions,
            cache_loc_out=slots,
            mask_token_id=int(worker._mask_token_id),
        )
        return ids, positions, slots
    ids = torch.full((size, block), int(worker._mask_token_id), dtype=torch.int64, device=device)
    ids[:, 0] = batch.spec_info.bonus_tokens
    positions = batch.seq_lens.long()[:, None] + torch.arange(block, device=device)
    return ids, positions, window(worker, batch, block)


def _embed(worker: Any, ids: torch.Tensor) -> torch.Tensor:
    module = unwrap_lora_layer(worker.target_worker.model_runner.model.get_input_embeddings())
    if worker._full_embed_gpu is not None:
        embeds = torch.nn.functional.embedding(ids, worker._full_embed_gpu)
    else:
        embeds = module(ids)
    if worker._noise_embed_scale != 1.0:
        embeds = embeds * worker._noise_embed_scale
    return embeds.view(-1, embeds.shape[-1])


def _host_lengths(batch: Any, block: int) -> torch.Tensor:
    """Upper bounds of the requests' lengths, on the host."""
    if batch.seq_lens_cpu is not None:
        return batch.seq_lens_cpu + block
    return batch.spec_info.nxt_kv_lens_cpu
