"""A DSpark drafter's edges are what its Markov head says of every pair of candidates."""

from __future__ import annotations

import types

import pytest
import torch

from specpilot_sglang.kernels.tree_build.build import build
from specpilot_sglang.kernels.tree_build.scores import MarginalScores, MarkovScores
from specpilot_sglang.tree.dspark import first_row, pair_scores

VOCAB, RANK, DEPTH, BATCH = 40, 6, 3, 2


@pytest.fixture
def head():
    generator = torch.Generator().manual_seed(0)
    return types.SimpleNamespace(
        markov_w1=torch.nn.Embedding(VOCAB, RANK, _weight=torch.randn(VOCAB, RANK, generator=generator)),
        markov_w2=types.SimpleNamespace(weight=torch.randn(VOCAB, RANK, generator=generator)),
    )


def test_pairs_are_the_heads_own_distributions_over_the_whole_vocabulary(head):
    logits, roots = torch.randn(BATCH, DEPTH, VOCAB, generator=torch.Generator().manual_seed(1)), torch.tensor([3, 7])
    lattice = pair_scores(MarginalScores.from_logits(logits, VOCAB), roots, head)
    for level, place in ((0, 0), (1, 4), (2, 11)):
        before = roots if level == 0 else lattice.tokens[:, level - 1, place]
        bias = head.markov_w1(before) @ head.markov_w2.weight.T
        expected = (logits[:, level] + bias).log_softmax(-1).gather(1, lattice.tokens[:, level])
        assert torch.allclose(lattice.logprobs[:, level, place], expected, atol=1e-5)


def test_trees_are_those_of_the_oracle_over_the_same_candidates(head):
    logits, roots = torch.randn(BATCH, DEPTH, VOCAB, generator=torch.Generator().manual_seed(2)), torch.tensor([3, 7])
    lattice = pair_scores(MarginalScores.from_logits(logits, 8), roots, head)
    oracle = MarkovScores(logits, head.markov_w1.weight, head.markov_w2.weight, candidates=8, pool=1)
    found, expected = build(lattice, roots, 12), build(oracle, roots, 12)
    assert torch.allclose(found.scores, expected.scores, atol=1e-5)
    assert torch.equal(found.tokens, expected.tokens)


def test_the_row_that_predicts_first_is_the_checkpoints():
    def config(name, **extra):
        return types.SimpleNamespace(architectures=[name], **extra)

    assert first_row(config("DFlashDraftModel")) == first_row(config("DFlash2DraftModel", sample_from_anchor=True)) == 1
    assert first_row(config("Qwen3DSparkModel")) == 0
    assert first_row(config("DSparkDraftModel", sample_from_anchor=False)) == 1
