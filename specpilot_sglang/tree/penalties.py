"""Penalties for tokens that a request has emitted already, at every node of its tree; stock's DFLASH ignores them.

A node's logits are penalised for all that was emitted before its tree and for the path that leads to it, as plain
decoding would be there. The host learns one step late what was emitted, so the counts are kept on the device.
"""

from __future__ import annotations

from typing import Any

import torch

from specpilot_sglang.kernels.tree_build.tree import AcceptedPath, Trees


class Penalties:
    """Counts of emitted tokens: int32 [rows of the request pool, vocab]."""

    def __init__(self, rows: int, vocab: int, device: torch.device | str) -> None:
        self.counts = torch.zeros(rows, vocab, dtype=torch.int32, device=device)

    def start(self, batch: Any) -> None:
        """Prepare a prefill: forget what rows held before, and let SGLang's sampler penalise for what was emitted.

        Args:
            batch: SGLang's batch; its requests know what they had emitted before they were retracted, and some of them
                may decode beside the prefill. Its `sampling_info`, a forward pass's own copy, is changed.
        """
        pools = batch.req_pool_indices.long()
        decoding = {id(req) for req in batch.decoding_reqs or ()}
        fresh = [i for i, req in enumerate(batch.reqs) if id(req) not in decoding]
        self.counts.index_fill_(0, pools[fresh], 0)
        for i in fresh:
            if len(batch.reqs[i].output_ids):
                before = torch.tensor(list(batch.reqs[i].output_ids), device=pools.device)
                self._add(pools[i].expand_as(before), before, torch.ones_like(before))
        added, scaled = self.counts.new_zeros(2, len(pools), self.counts.shape[1], dtype=torch.float32)
        scaled += 1
        for i, req in enumerate(batch.reqs):
            if not neutral(req.sampling_params):
                counts = self.counts.index_select(0, pools[i : i + 1])
                added[i : i + 1], scaled[i : i + 1] = _terms(req, counts, counts.sum(-1))
        batch.sampling_info.acc_additive_penalties = added
        # SGLang compiles what scales, when it first does.
        scales = any(req.sampling_params.repetition_penalty != 1 for req in batch.reqs)
        batch.sampling_info.acc_scaling_penalties = scaled if scales else None

    def add_one(self, pools: torch.Tensor, tokens: torch.Tensor) -> None:
        """Count a token a request; `pools` int [batch], the requests' rows, `tokens` int [batch]."""
        self._add(pools.long(), tokens.long(), torch.ones_like(tokens))

    def add(self, pools: torch.Tensor, accepted: AcceptedPath) -> None:
        """Count what a step has emitted; `pools` int [batch], the requests' rows."""
        tokens = accepted.tokens
        there = torch.arange(tokens.shape[1], device=tokens.device) < accepted.lens[:, None]
        self._add(pools.long()[:, None].expand_as(tokens), tokens, there)

    def apply(self, logits: torch.Tensor, batch: Any, trees: Trees) -> None:
        """Penalise the nodes of requests that ask for it.

        Args:
            logits: float [batch * nodes, vocab], changed in place.
            batch: SGLang's batch.
            trees: the drafted trees; their roots are counted already.
        """
        seen = trees.ancestors()
        seen[:, :, 0] = False
        for i, req in enumerate(batch.reqs):
            if neutral(req.sampling_params):
                continue
            rows = logits[i * trees.nodes : (i + 1) * trees.nodes]
            before = self.counts.index_select(0, batch.req_pool_indices[i : i + 1].long())
            path = trees.tokens[i].expand(trees.nodes, -1)
            counts = before.repeat(trees.nodes, 1).scatter_add_(1, path, seen[i].int())
            added, scaled = _terms(req, counts, before.sum() + trees.depths[i])
            rows.add_(added)
            if req.sampling_params.repetition_penalty != 1:
                rows.copy_(torch.where(rows < 0, rows * scaled, rows / scaled))

    def _add(self, pools: torch.Tensor, tokens: torch.Tensor, count: torch.Tensor) -> None:
        places = (pools * self.counts.shape[1] + tokens).flatten()
        self.counts.view(-1).scatter_add_(0, places, count.flatten().int())


def penalties_of(worker: Any, sampling: Any) -> Penalties | None:
    """The worker's counts where a request of the batch asks for penalties, else None; made when first asked for.

    Args:
        worker: the tree worker.
        sampling: the batch's `SamplingBatchInfo` as a forward pass gets it.
    """
    if sampling is None or sampling.acc_additive_penalties is None:
        return None
    if worker.penalties is None:
        table = worker.model_runner.req_to_token_pool.req_to_token
        worker.penalties = Penalties(len(table), sampling.vocab_size, table.device)
    found: Penalties = worker.penalties
    return found


def neutral(asked: Any) -> bool:
    """Whether SGLang's `SamplingParams` ask for none of the penalties."""
    return bool(
        asked.frequency_penalty == 0
        and asked.presence_penalty == 0
        and asked.repetition_penalty == 1
        and asked.min_new_tokens <= 0
    )


def _terms(req: Any, counts: torch.Tensor, emitted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is added to logits [rows, vocab], and by what a sum below 0 is multiplied then and one above 0 divided.

    Args:
        req: SGLang's request.
        counts: int [rows, vocab], how often it has emitted each token.
        emitted: int [rows], how many tokens.
    """
    asked, there = req.sampling_params, counts > 0
    added = -asked.frequency_penalty * counts.float() - asked.presence_penalty * there
    if asked.min_new_tokens > 0:
        stops = torch.tensor(_stop_ids(req), dtype=torch.int64, device=counts.device)
        added[:, stops] = added[:, stops].masked_fill((emitted < asked.min_new_tokens)[:, None], float("-inf"))
    return added, torch.where(there, asked.repetition_penalty, 1.0)


def _stop_ids(req: Any) -> list[int]:
    """The tokens that SGLang's `min_new_tokens` forbids."""
    found = set(req.sampling_params.stop_token_ids or ()) | set(req.eos_token_ids or ())
    if req.tokenizer is not None:
        found |= set(req.tokenizer.additional_stop_token_ids or ()) | {req.tokenizer.eos_token_id}
    return sorted(token for token in found if token is not None)
