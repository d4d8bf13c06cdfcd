"""Walking a tree by the target's own tokens emits exactly what plain decoding would."""

from __future__ import annotations

import types

import pytest
import torch
from scipy.stats import chisquare

from specpilot_sglang.kernels.tree_build.build import build
from specpilot_sglang.kernels.tree_build.scores import MarginalScores
from specpilot_sglang.tree.accept import distribution, draw, target_tokens, walk


def some_trees(batch, nodes, vocab=12, depth=4, seed=0, budgets=None):
    generator = torch.Generator().manual_seed(seed)
    edges = MarginalScores.from_logits(torch.randn(batch, depth, vocab, generator=generator), 6)
    return build(edges, torch.randint(vocab, (batch,), generator=generator), nodes, budgets=budgets)


def by_hand(trees, row, chosen):
    """One request's walk, node by node."""
    path, emitted = [0], [int(chosen[row, 0])]
    while True:
        children = [n for n in range(int(trees.sizes[row])) if int(trees.parents[row, n]) == path[-1]]
        next_node = [n for n in children if int(trees.tokens[row, n]) == emitted[-1]]
        if not next_node:
            return path, emitted
        path.append(next_node[0])
        emitted.append(int(chosen[row, path[-1]]))


@pytest.mark.parametrize("agreement", [0.0, 0.5, 0.9, 1.0])
def test_walk_follows_the_children_that_agree(agreement):
    batch, nodes, width = 64, 20, 5
    trees = some_trees(batch, nodes, budgets=torch.randint(1, 21, (64,), generator=torch.Generator().manual_seed(1)))
    generator = torch.Generator().manual_seed(2)
    chosen = torch.randint(12, (batch, nodes), generator=generator)
    for row in range(batch):
        for node in range(1, int(trees.sizes[row])):
            if torch.rand(1, generator=generator) < agreement:
                chosen[row, int(trees.parents[row, node])] = trees.tokens[row, node]
    accepted = walk(trees, chosen, torch.arange(batch), width)
    lengths = set()
    for row in range(batch):
        path, emitted = by_hand(trees, row, chosen)
        lengths.add(len(path))
        assert accepted.index[row].tolist() == path + [-1] * (width - len(path))
        assert int(accepted.lens[row]) == len(path)
        assert accepted.tokens[row, : len(path)].tolist() == emitted
        assert int(accepted.bonus[row]) == emitted[-1]
        assert int(accepted.new_lens[row]) == row + len(path)
        assert accepted.flat_index(nodes)[row].tolist() == [row * nodes + n for n in path] + [-1] * (width - len(path))
        assert accepted.front[row].tolist() == path + list(range(len(path), width))
    assert agreement in (0.0, 1.0) or len(lengths) > 1


def test_padding_is_never_accepted():
    """Padding carries the root's token, which the target may well choose."""
    trees = some_trees(4, 8, budgets=torch.tensor([1, 1, 3, 1]))
    chosen = trees.tokens[:, :1].expand(-1, 8)
    assert walk(trees, chosen, torch.zeros(4), 5).lens.tolist()[:2] == [1, 1]


def test_sampled_sequences_are_distributed_as_plain_sampling():
    """Chi-square over all sequences of three tokens of a small Markov target, through trees of marginals."""
    vocab, batch, wanted = 4, 40000, 3
    generator = torch.Generator().manual_seed(4)
    target = (1.5 * torch.randn(vocab, vocab, generator=generator)).softmax(-1)
    torch.manual_seed(5)
    last = torch.zeros(batch, dtype=torch.int64)
    emitted, counts = torch.zeros(batch, wanted + 4, dtype=torch.int64), torch.zeros(batch, dtype=torch.int64)
    steps = 0
    while int(counts.min()) < wanted:
        marginals = torch.randn(1, 3, vocab, generator=generator).expand(batch, -1, -1)
        trees = build(MarginalScores.from_logits(marginals, 3), last, 7)
        chosen = draw(target[trees.tokens].flatten(0, 1), None, trees.depths.flatten()).view(batch, 7)
        accepted = walk(trees, chosen, torch.zeros(batch), 4)
        for place in range(4):
            live = (place < accepted.lens) & (counts < wanted)
            rows = live.nonzero().flatten()
            emitted[rows, counts[rows]] = accepted.tokens[rows, place]
            counts[rows] += 1
        # A request that has its tokens goes on, so that no length is preferred.
        last = emitted.gather(1, (counts - 1)[:, None]).squeeze(1)
        steps += 1
    assert steps <= wanted
    code = emitted[:, 0] * vocab**2 + emitted[:, 1] * vocab + emitted[:, 2]
    seen = torch.bincount(code, minlength=vocab**3).double()
    exact = (target[0][:, None, None] * target[:, :, None] * target[None]).flatten().double()
    assert chisquare(seen.numpy(), (exact / exact.sum() * batch).numpy()).pvalue > 1e-3


def test_rows_that_need_not_sum_to_one_are_drawn_in_proportion():
    torch.manual_seed(6)
    weights = torch.tensor([0.2, 0.0, 0.6]).expand(20000, 3)
    seen = torch.bincount(draw(weights, None, torch.zeros(20000)), minlength=3).double()
    assert seen[1] == 0
    assert chisquare(seen[[0, 2]].numpy(), [5000.0, 15000.0]).pvalue > 1e-3


def test_shorter_paths_do_not_write_over_other_requests_tokens():
    """Log probabilities are looked up by row; padding of a short path once went to the first request's root."""
    trees = some_trees(3, 8, seed=3)
    chosen = torch.full((3, 8), 30)
    for row in range(3):
        child = int((trees.parents[row] == 0).nonzero()[0])
        chosen[row, 0] = trees.tokens[row, child] if row == 0 else 20 + row
    accepted = walk(trees, chosen, torch.zeros(3), 5)
    assert accepted.lens.tolist() == [2, 1, 1]
    found = accepted.tokens_by_row(8)
    rows = accepted.flat_index(8)
    for row in range(3):
        for place in range(int(accepted.lens[row])):
            assert int(found[rows[row, place]]) == int(accepted.tokens[row, place])
    assert int((found != 0).sum()) == 4


ALL = 1 << 30  # SGLang's "no top-k"
FILTERS = [(3, 0.6, 0.0), (ALL, 0.8, 0.0), (2, 1.0, 0.0), (1, 1.0, 0.0), (5, 0.7, 0.2), (ALL, 1.0, 0.0)]


class Sampling:
    """What acceptance reads of SGLang's batch: one request a filter (top-k, top-p, min-p)."""

    def __init__(self, filters, seeds=None):
        self.top_ks, self.top_ps, self.min_ps = (torch.tensor(column) for column in zip(*filters, strict=True))
        self.temperatures = torch.full((len(filters), 1), 0.7)
        self.need_top_k_sampling = bool((self.top_ks != ALL).any())
        self.need_top_p_sampling = bool((self.top_ps != 1).any())
        self.need_min_p_sampling = bool((self.min_ps != 0).any())
        self.sampling_seed = None if seeds is None else torch.tensor(seeds)
        self.is_all_greedy = False
        self.most = int(self.top_ks.max())

    def __len__(self):
        return len(self.top_ks)


def plainly(logits, sampling, nodes, **asked):
    """What plain decoding's sampler in torch makes of the same rows."""
    from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch

    def rows(values):
        return values.view(-1).repeat_interleave(nodes)

    return top_k_top_p_min_p_sampling_from_probs_torch(
        (logits / rows(sampling.temperatures)[:, None]).softmax(-1),
        *(rows(x) for x in (sampling.top_ks, sampling.top_ps, sampling.min_ps)),
        sampling.need_min_p_sampling,
        None if sampling.sampling_seed is None else rows(sampling.sampling_seed),
        **asked,
    )


@pytest.mark.parametrize("filters", [FILTERS, FILTERS[:1], [FILTERS[0], FILTERS[4]], FILTERS[1:2], FILTERS[:4]])
def test_filters_admit_the_tokens_that_plain_decodings_admit(filters):
    """Top-p of what top-k had left once kept fewer tokens than plain decoding, as SGLang's speculative workers do."""
    nodes, vocab = 20, 12
    logits = torch.randn(len(filters) * nodes, vocab, generator=torch.Generator().manual_seed(7))
    sampling = Sampling(filters)
    found = distribution(logits, sampling, sampling.most)
    _, plain, ids, _ = plainly(logits, sampling, nodes, positions=None, return_filtered_probs=True)
    expected = torch.zeros_like(logits).scatter_(1, ids.long(), plain)
    assert torch.allclose(found, expected / expected.sum(-1, keepdim=True), atol=1e-6)
    assert (found > 0).sum() < found.numel()


def test_seeds_draw_what_plain_decoding_draws_through_filters(monkeypatch):
    from sglang.srt.layers import sampler

    # SGLang's own hash is a CUDA kernel.
    noise = torch.randint(1, 2**32, (8, 200, 64), generator=torch.Generator().manual_seed(9))
    monkeypatch.setattr(sampler, "murmur_hash32", lambda seeds, places, ranks: noise[seeds.long(), places][:, ranks])
    nodes, vocab, filters = 5, 40, [(9, 0.8, 0.0), (4, 1.0, 0.0), (ALL, 0.9, 0.0)]
    logits = torch.randn(len(filters) * nodes, vocab, generator=torch.Generator().manual_seed(8))
    sampling = Sampling(filters, seeds=[5, 6, 7])
    positions = torch.arange(len(logits)) % 7 + 100
    with torch.compiler.set_stance("force_eager"):
        found = target_tokens(logits, sampling, sampling_state(sampling), positions)
        assert torch.equal(found, plainly(logits, sampling, nodes, positions=positions).long())
    assert not torch.equal(found, logits.argmax(-1))


def test_greedy_requests_beside_sampled_ones_take_the_first_of_equal_tokens(monkeypatch):
    """FlashInfer's top-k keeps all tokens that equal the last one it keeps."""
    from sglang.srt.speculative import dflash_utils

    def with_equals(probs, top_ks):
        ranked = probs.sort(-1, descending=True).values
        return probs * (probs >= ranked.gather(1, top_ks.clamp(max=probs.shape[1])[:, None] - 1))

    monkeypatch.setattr(dflash_utils, "_dflash_top_k_renorm_prob", with_equals)
    logits = torch.zeros(2 * 50, 300)
    logits[:, 100:110] = 9.0
    sampling = Sampling([(1, 1.0, 0.0), (ALL, 1.0, 0.0)])
    found = target_tokens(logits, sampling, sampling_state(sampling), torch.zeros(100, dtype=torch.int64))
    assert (found[:50] == 100).all()
    assert len(set(found[50:].tolist())) > 3


def sampling_state(sampling):
    return types.SimpleNamespace(max_top_k=sampling.most)
