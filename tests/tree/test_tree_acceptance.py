"""Walking a tree by the target's own tokens emits exactly what plain decoding would."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from specpilot_sglang.kernels.tree_build.build import build
from specpilot_sglang.kernels.tree_build.scores import MarginalScores
from specpilot_sglang.tree.accept import draw, walk


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
