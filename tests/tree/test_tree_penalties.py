"""Every node of a tree is penalised for what was emitted before it, step after step, as plain decoding would be."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from specpilot_sglang.kernels.tree_build.build import build
from specpilot_sglang.kernels.tree_build.scores import MarginalScores
from specpilot_sglang.tree.accept import walk
from specpilot_sglang.tree.penalties import Penalties, penalties_of

VOCAB, NODES, ROWS = 12, 10, 6
STOP, END, EXTRA = 3, 5, 7
NEUTRAL = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0}


def request(emitted=(), **asked):
    return SimpleNamespace(
        sampling_params=SimpleNamespace(**NEUTRAL | asked, stop_token_ids={STOP}),
        output_ids=list(emitted),
        eos_token_ids={END},
        tokenizer=SimpleNamespace(additional_stop_token_ids={EXTRA}, eos_token_id=END),
    )


def batch_of(requests, pools, decoding=None):
    info = SimpleNamespace(acc_additive_penalties=None, acc_scaling_penalties=None)
    return SimpleNamespace(reqs=requests, req_pool_indices=pools, decoding_reqs=decoding, sampling_info=info)


REQUESTS = [
    request(frequency_penalty=0.7),
    request(),
    request(presence_penalty=1.5, repetition_penalty=1.3),
    request(emitted=[4, 4, 9], frequency_penalty=0.2, repetition_penalty=0.8),  # was retracted
    request(min_new_tokens=4),
]


def by_hand(logits, asked, emitted):
    """One row's logits after these tokens."""
    counts, row = Counter(emitted), logits.clone()
    for token, count in counts.items():
        row[token] -= asked.frequency_penalty * count + asked.presence_penalty
        row[token] = row[token] * asked.repetition_penalty if row[token] < 0 else row[token] / asked.repetition_penalty
    if len(emitted) < asked.min_new_tokens:
        row[[STOP, END, EXTRA]] = float("-inf")
    return row


def drafted(roots, generator):
    logits = torch.randn(len(roots), 4, VOCAB, generator=generator)
    return build(MarginalScores.from_logits(logits, VOCAB), roots, NODES)


def test_nodes_are_penalised_for_all_that_was_emitted_and_for_their_path():
    generator, batch = torch.Generator().manual_seed(0), len(REQUESTS)
    pools = torch.tensor([4, 1, 5, 2, 3], dtype=torch.int32)
    running = batch_of(REQUESTS, pools)
    penalties = Penalties(ROWS, VOCAB, "cpu")
    penalties.counts.fill_(77)  # of requests that had these rows before
    penalties.start(running)
    first = torch.randint(VOCAB, (batch,), generator=generator)
    penalties.add_one(pools, first)
    emitted = [[*req.output_ids, int(token)] for req, token in zip(REQUESTS, first, strict=True)]
    for _ in range(3):
        roots = torch.tensor([tokens[-1] for tokens in emitted])
        trees = drafted(roots, generator)
        logits = torch.randn(batch * NODES, VOCAB, generator=generator)
        found = logits.clone()
        penalties.apply(found, running, trees)
        for i, req in enumerate(REQUESTS):
            for node in range(int(trees.sizes[i])):
                path, at = [], node
                while at > 0:
                    path.append(int(trees.tokens[i, at]))
                    at = int(trees.parents[i, at])
                expected = by_hand(logits[i * NODES + node], req.sampling_params, emitted[i] + path[::-1])
                assert torch.allclose(found[i * NODES + node], expected, atol=1e-5), (i, node)
        chosen = found.argmax(-1).view(batch, NODES)
        for i in range(batch):  # the first child of the root is accepted
            child = int((trees.parents[i] == 0).nonzero()[0])
            chosen[i, 0] = trees.tokens[i, child]
        accepted = walk(trees, chosen, torch.zeros(batch), 5)
        assert int(accepted.lens.min()) > 1
        penalties.add(pools, accepted)
        for i, length in enumerate(accepted.lens.tolist()):
            emitted[i] += accepted.tokens[i, :length].tolist()
    assert penalties.counts[0].eq(77).all(), "another request's row was touched"


def test_prefills_are_penalised_by_sglangs_sampler_for_what_requests_had_emitted():
    """Those that were retracted, and those that decode beside a prefill; stock has counts of neither."""
    penalties = Penalties(ROWS, VOCAB, "cpu")
    old = request(emitted=[1], frequency_penalty=1.0, repetition_penalty=1.5)
    penalties.counts[2, 6] = 3  # the host knows less
    batch = batch_of([*REQUESTS, old], torch.tensor([4, 1, 5, 3, 0, 2]), decoding=[old])
    penalties.start(batch)
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(1))
    found = logits + batch.sampling_info.acc_additive_penalties
    scale = batch.sampling_info.acc_scaling_penalties
    found = torch.where(found < 0, found * scale, found / scale)
    for i, (req, emitted) in enumerate(zip(batch.reqs, ([], [], [], [4, 4, 9], [], [6, 6, 6]), strict=True)):
        assert torch.allclose(found[i], by_hand(logits[i], req.sampling_params, emitted), atol=1e-5), i
    unscaled = batch_of([request(frequency_penalty=1.0)], torch.tensor([4]))
    penalties.start(unscaled)
    assert unscaled.sampling_info.acc_scaling_penalties is None
    penalties.add_one(batch.req_pool_indices, torch.tensor([0, 0, 0, 0, 0, 8]))
    assert penalties.counts[2].nonzero().flatten().tolist() == [6, 8]


@pytest.mark.parametrize("penalised", [False, True])
def test_batches_without_penalties_count_nothing(penalised):
    pool = SimpleNamespace(req_to_token=torch.zeros(ROWS, 4))
    worker = SimpleNamespace(penalties=None, model_runner=SimpleNamespace(req_to_token_pool=pool))
    sampling = SimpleNamespace(acc_additive_penalties=torch.zeros(1) if penalised else None, vocab_size=VOCAB)
    found = penalties_of(worker, sampling)
    assert (found is not None) == penalised
    assert worker.penalties is found
    assert penalties_of(worker, None) is None
