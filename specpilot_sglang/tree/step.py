"""One decode step over trees: draft, build, verify, accept, commit."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, MHATokenToKVPool
from sglang.srt.speculative.dflash_utils import apply_dflash_verify_logits_adjustments
from sglang.srt.speculative.draft_worker_common import make_draft_input_v2
from sglang.srt.speculative.eagle_utils import eagle_prepare_for_verify
from sglang.srt.speculative.spec_sampling_mask import SpeculativeSamplingMaskCapture
from sglang.srt.speculative.spec_tp_sync import SpecTpSyncSite
from sglang.srt.speculative.spec_utils import (
    GrammarTree,
    build_grammar_vocab_mask,
    commit_mamba_states_after_verify,
)

from specpilot_sglang.kernels.tree_build.launch import LinkedTrees
from specpilot_sglang.kernels.tree_build.tree import AcceptedPath
from specpilot_sglang.kernels.tree_build.verify import can_move, move_rows
from specpilot_sglang.tree.accept import accept, distribution, target_tokens
from specpilot_sglang.tree.draft import draft_trees, open_step, plan
from specpilot_sglang.tree.gated_delta import commit_layers
from specpilot_sglang.tree.penalties import penalties_of
from specpilot_sglang.tree.tiers import Tier
from specpilot_sglang.tree.verify_input import TreeVerifyInput


def tree_step(worker: Any, tier: Tier, batch: Any, on_publish: Any, grammar_barrier: Any) -> GenerationBatchResult:
    """Advance every request of a decode batch by the accepted path of its tree and the target's next token."""
    nodes = tier.width
    stream = torch.get_device_module(worker.device).current_stream()
    batch.seq_lens.record_stream(stream)
    draft_input, lengths = batch.spec_info, batch.seq_lens
    opened = open_step(worker, batch, nodes)
    made = draft_trees(worker, tier, batch, opened)
    slots = opened.window
    verify_plan = plan(worker, batch, slots)
    cached = int(draft_input.nxt_kv_lens_sum if batch.seq_lens_cpu is None else batch.seq_lens_cpu.sum())
    _, paths, index = tier.views(len(lengths))
    verify_input = TreeVerifyInput.of(made, lengths, cached, tier.depth, slots.flatten(), verify_plan, paths, index)
    if worker.tree.gated_delta:
        # Stock's hybrid backends would copy them for kernels of theirs that no layer runs.
        verify_input.retrieve_next_token = verify_input.retrieve_next_sibling = None

    output = _verify(worker, batch, made, verify_input, grammar_barrier)
    logits_output = output.logits_output
    accepted = _accept(worker, tier, batch, made, verify_input, logits_output, draft_input, slots)
    _finish_outputs(batch, accepted, verify_input, logits_output, draft_input)

    # Both read `batch.seq_lens` as the lengths before this step.
    if worker.tree.gated_delta:
        commit_layers(worker, batch, accepted, nodes)
    elif worker._need_mamba_verify_commit:
        commit_mamba_states_after_verify(worker.target_worker, batch, accepted.lens, accepted.flat_index(nodes), nodes)
    _move_kv(worker, slots, accepted)
    if on_publish is not None:
        on_publish(accepted.new_lens)
    _feed_drafter(worker, nodes, logits_output, accepted, verify_plan)
    logits_output.hidden_states = None

    return GenerationBatchResult(
        logits_output=logits_output,
        next_token_ids=accepted.emitted.flatten(),
        accept_lens=accepted.lens,
        can_run_cuda_graph=output.can_run_cuda_graph,
        next_draft_input=make_draft_input_v2(bonus_tokens=accepted.bonus, new_seq_lens=accepted.new_lens),
        speculative_num_draft_tokens=nodes,
        new_seq_lens=accepted.new_lens,
        routed_experts_output=output.routed_experts_output,
        indexer_topk_output=output.indexer_topk_output,
    )


def _verify(worker: Any, batch: Any, made: LinkedTrees, verify_input: TreeVerifyInput, grammar_barrier: Any) -> Any:
    """Run the target over all nodes; logits come back with penalties, biases and grammar masks applied."""
    batch.spec_info = verify_input
    forward, _ = eagle_prepare_for_verify(
        verify_input, worker.model_runner.req_to_token_pool, batch, worker.target_worker
    )
    grammar = None
    if batch.has_grammar:
        # Starts copies to the host, so it goes before the target's launch.
        grammar = GrammarTree.from_device(made.child, made.sibling, made.trees.tokens)
    output = worker.target_worker.forward_batch_generation(batch=None, forward_batch=forward, is_verify=True)
    logits = output.logits_output.next_token_logits
    sampling = batch.sampling_info
    penalties = penalties_of(worker, sampling)
    if penalties is not None:
        penalties.apply(logits, batch, made.trees)
    if sampling is not None:
        apply_dflash_verify_logits_adjustments(
            next_token_logits=logits, sampling_info=sampling, draft_token_num=verify_input.draft_token_num
        )
    if grammar is not None:
        mask = build_grammar_vocab_mask(
            reqs=batch.reqs, tree=grammar, sampling_info=sampling, device=logits.device, barrier=grammar_barrier
        )
        if mask is not None:
            mask.apply(logits)
    return output


def _accept(
    worker: Any,
    tier: Tier,
    batch: Any,
    made: LinkedTrees,
    verify_input: TreeVerifyInput,
    logits_output: Any,
    draft_input: Any,
    slots: torch.Tensor,
) -> AcceptedPath:
    logits = logits_output.next_token_logits
    chosen = target_tokens(logits, batch.sampling_info, draft_input, verify_input.positions)
    # One rank's tokens for all: what a rank accepts decides the shapes of its next step.
    greedy = batch.sampling_info is None or batch.sampling_info.is_all_greedy
    site = SpecTpSyncSite.DFLASH_ACCEPT_GREEDY if greedy else SpecTpSyncSite.DFLASH_ACCEPT_SAMPLE
    worker._tp_sync.sync(site, chosen)
    chosen = chosen.view(made.trees.tokens.shape)
    accepted = accept(made, chosen, batch.seq_lens, tier.depth + 1, slots, worker.simulated_length)
    penalties = penalties_of(worker, batch.sampling_info)
    if penalties is not None:
        penalties.add(batch.req_pool_indices, accepted)
    return accepted


def _finish_outputs(
    batch: Any, accepted: AcceptedPath, verify_input: TreeVerifyInput, logits_output: Any, draft_input: Any
) -> None:
    """Log probabilities and sampling masks of the emitted tokens, where a request asked for them."""
    nodes = verify_input.draft_token_num
    logits = logits_output.next_token_logits
    if batch.return_logprob:
        rows = accepted.flat_index(nodes)
        compute_spec_logprobs(batch, logits_output, accepted.tokens_by_row(nodes), accept_index=rows)
    sampling = batch.sampling_info
    if sampling is None or sampling.sampling_mask_batch_indices is None:
        return
    rows = accepted.flat_index(nodes)
    path = logits[rows.clamp(min=0).flatten()]
    batch_size, width = rows.shape
    greedy = sampling.is_all_greedy
    # Stock's own way to make one filters otherwise than `admitted`, and would miss tokens that were drawn.
    capture = SpeculativeSamplingMaskCapture(
        None if greedy else distribution(path, sampling, draft_input.max_top_k).view(batch_size, width, -1),
        sampling.sampling_mask_batch_indices,
        max(sampling.sampling_mask_top_ks),
        support_capture_indices=sampling.sampling_support_logprobs_capture_indices,
    )
    logits_output.sampling_mask_output = capture.build_output(out_tokens=accepted.tokens, commit_lens=accepted.lens)


def kv_pool(worker: Any) -> Any:
    """The target's pool of keys and values."""
    return worker.target_worker.model_runner.token_to_kv_pool_allocator.get_kvcache()


def kv_rows(pool: Any) -> Any:
    """The part of a pool whose rows one kernel may move, None where the pool's own code has to."""
    rows = pool.full_kv_pool if isinstance(pool, HybridLinearKVPool) else pool
    return rows if type(rows) is MHATokenToKVPool and can_move(rows) else None


def _move_kv(worker: Any, slots: torch.Tensor, accepted: AcceptedPath) -> None:
    """Bring the accepted path's keys and values to the front of each window."""
    pool = kv_pool(worker)
    rows = kv_rows(pool) if slots.is_cuda else None
    if rows is not None:
        move_rows(rows, slots, accepted.index, accepted.lens)
    else:
        pool.move_kv_cache(accepted.locs.flatten(), slots.gather(1, accepted.front).flatten())


def _feed_drafter(worker: Any, nodes: int, logits_output: Any, accepted: AcceptedPath, kv_plan: Any) -> None:
    """Give the drafter context keys and values of accepted nodes only, at the places they were moved to."""
    batch, width = accepted.index.shape
    locs = accepted.locs
    written = worker._draft_write_ids(kv_plan)
    if written is not kv_plan.write_virtual:
        # The drafter's pool has slot numbers of its own.
        locs = written.view(batch, nodes)[:, :width].contiguous()
    worker._append_target_hidden_to_draft_kv_by_loc(
        target_hidden=logits_output.hidden_states.index_select(0, accepted.rows.flatten()),
        cache_loc=locs.flatten(),
        cache_loc_2d=locs,
        positions=accepted.positions.flatten(),
        commit_lens=accepted.lens,
    )
