"""The drafter's block pass, and each position's candidates over the target's LM head."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.lora.layers import unwrap_lora_layer
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_utils import draft_tp_context

from specpilot_sglang.kernels.tree_build.scores import MarginalScores


def draft_block(worker: Any, batch: Any, slots: torch.Tensor) -> torch.Tensor:
    """Run the drafter once over a block of the committed token and masks.

    Args:
        worker: the tree worker.
        batch: SGLang's decode batch; `batch.spec_info` holds the committed tokens.
        slots: int64 [batch, block], KV slots for the block.

    Returns:
        [batch, block - 1, hidden], what the drafter says of each masked position.
    """
    size, block = slots.shape
    lengths = batch.seq_lens
    ids = torch.full((size, block), int(worker._mask_token_id), dtype=torch.int64, device=slots.device)
    ids[:, 0] = batch.spec_info.bonus_tokens
    positions = (lengths[:, None] + torch.arange(block, device=slots.device)).flatten()
    host = _host_lengths(batch, block)
    forward = ForwardBatch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        batch_size=size,
        input_ids=ids.flatten(),
        req_pool_indices=batch.req_pool_indices,
        seq_lens=lengths,
        out_cache_loc=slots.flatten(),
        seq_lens_sum=int(host.sum()),
        seq_lens_cpu=host,
        positions=positions,
        input_embeds=_embed(worker, ids),
        spec_algorithm=SpeculativeAlgorithm.DFLASH,
        spec_info=worker._draft_block_spec_info,
        capture_hidden_mode=CaptureHiddenMode.NULL,
        global_num_token_non_padded_cpu=size * block,
        can_run_decode_cuda_graph=False,
    )
    plan(worker, batch, slots).bind(forward, worker.draft_model_runner.kv_index_translator)
    with torch.inference_mode(), draft_tp_context(worker.draft_parallel_layout):
        hidden = worker.draft_model_runner.forward(forward).logits_output.hidden_states
    return hidden.view(size, block, -1)[:, 1:]


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


def candidates(worker: Any, hidden: torch.Tensor, width: int) -> MarginalScores:
    """Best `width` tokens of each masked position with their log probabilities, over all ranks' vocabulary shards."""
    head = unwrap_lora_layer(worker.target_worker.model_runner.model.lm_head)
    size, depth, dim = hidden.shape
    logits = worker.head_logits(hidden.reshape(-1, dim), head).view(size, depth, -1)
    shard = getattr(head, "shard_indices", None)
    start = 0
    if shard is not None:
        logits, start = logits[..., : shard.num_org_elements], int(shard.org_vocab_start_index)
    group = get_parallel().tp_group
    if group.world_size == 1:
        return MarginalScores.from_logits(logits, width)
    return _over_ranks(logits.float(), start, width, group)


def _over_ranks(logits: torch.Tensor, start: int, width: int, group: Any) -> MarginalScores:
    best, tokens = logits.topk(min(width, logits.shape[-1]), dim=-1)
    # Doubles hold every token id, so one gather carries scores, ids and the shard's normaliser.
    packed = torch.cat([best.double(), (tokens + start).double(), logits.logsumexp(-1, keepdim=True).double()], -1)
    shares = group.all_gather(packed.contiguous(), dim=0).view(group.world_size, *packed.shape)
    count = best.shape[-1]
    scores = shares[..., :count].movedim(0, -2).flatten(-2)
    ids = shares[..., count : 2 * count].movedim(0, -2).flatten(-2).long()
    whole = shares[..., -1].logsumexp(0)
    # Ranks hold rising shards, so a stable sort resolves ties as one vocabulary would: the lower token first.
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :width]
    return MarginalScores(ids.gather(-1, order), (scores.gather(-1, order) - whole[..., None]).float())


def _embed(worker: Any, ids: torch.Tensor) -> torch.Tensor:
    module = unwrap_lora_layer(worker.target_worker.model_runner.model.get_input_embeddings())
    if worker._full_embed_gpu is not None:
        embeds = torch.nn.functional.embedding(ids, worker._full_embed_gpu)
    else:
        embeds = module(ids)
    return (embeds * worker._noise_embed_scale).view(-1, embeds.shape[-1])


def _host_lengths(batch: Any, block: int) -> torch.Tensor:
    """Upper bounds of the requests' lengths, on the host."""
    if batch.seq_lens_cpu is not None:
        return batch.seq_lens_cpu + block
    return batch.spec_info.nxt_kv_lens_cpu
