"""The batched tree builder finds the optimal tree: against all paths, and against the heap of the paper."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch

from specpilot_sglang.kernels.tree_build.build import build
from specpilot_sglang.kernels.tree_build.ref import best_first
from specpilot_sglang.kernels.tree_build.scores import LatticeScores, MarginalScores, MarkovScores
from specpilot_sglang.kernels.tree_build.tree import full_mask

DEPTH, WIDTH, VOCAB = 3, 4, 50


def marginals(batch, seed, ties=False, depth=DEPTH, width=WIDTH):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, depth, VOCAB, generator=generator)
    if ties:
        logits = logits.round()
    return MarginalScores.from_logits(logits, width)


def lattice(batch, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.stack([torch.randperm(VOCAB, generator=generator)[:WIDTH] for _ in range(batch * DEPTH)])
    scores = 3 * torch.randn(batch, DEPTH, WIDTH, WIDTH, generator=generator)
    scores[:, 0] = scores[:, 0, :1]  # every "before" of the first position is the committed token
    return LatticeScores.normalised(tokens.view(batch, DEPTH, WIDTH), scores)


def markov(batch, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(batch, DEPTH, VOCAB, generator=generator)
    before, after = torch.randn(VOCAB, 6, generator=generator), torch.randn(VOCAB, 6, generator=generator)
    return MarkovScores(logits, before, after, WIDTH)


KINDS = {
    "marginals": marginals,
    "marginals with ties": lambda b, s: marginals(b, s, True),
    "lattice": lattice,
    "markov": markov,
}


def paths_of(trees, row):
    """Token paths of one tree's live nodes, with scores."""
    found = {}
    for node in range(int(trees.sizes[row])):
        path, at = [], node
        while at > 0:
            path.append(int(trees.tokens[row, at]))
            at = int(trees.parents[row, at])
            assert at >= 0
        found[tuple(reversed(path))] = float(trees.scores[row, node])
    return found


def children_of(edges, row, roots):
    """The oracle's view: children of a path of candidate places, by asking the provider for one parent at a time."""

    @functools.cache
    def table(path):
        rank = token = None
        for level in range(len(path) + 1):
            ranks = torch.zeros(len(roots), 1, dtype=torch.int64) if rank is None else rank
            tokens = roots[:, None] if token is None else token
            child_tokens, logprobs = edges.expand(level, ranks, tokens)
            if level == len(path):
                return child_tokens[row, 0], logprobs[row, 0]
            rank = torch.full((len(roots), 1), path[level])
            token = child_tokens[:, :, path[level]].reshape(len(roots), 1)
        raise AssertionError

    @functools.cache
    def children(path):
        _, logprobs = table(path)
        return sorted(enumerate(logprobs.tolist()), key=lambda pair: -pair[1])

    def tokens(path):
        return tuple(int(table(path[:i])[0][path[i]]) for i in range(len(path)))

    return children, tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [1, 2, 7, 16, 40])
def test_tree_holds_the_best_paths_of_all_paths(kind, budget):
    batch = 3
    edges, roots = KINDS[kind](batch, budget), torch.tensor([1, 2, 3])
    trees = build(edges, roots, budget)
    for row in range(batch):
        children, _ = children_of(edges, row, roots)
        scores = [0.0]
        for depth in range(1, DEPTH + 1):
            for path in itertools.product(range(WIDTH), repeat=depth):
                steps = [dict(children(path[:i]))[path[i]] for i in range(depth)]
                scores.append(sum(steps))
        best = sorted(scores, reverse=True)[:budget]
        assert trees.scores[row].tolist() == pytest.approx(best, abs=1e-5)
        assert trees.scores[row].sum().item() == pytest.approx(sum(best), abs=1e-4)


@pytest.mark.parametrize("kind", ["marginals", "lattice", "markov"])
def test_tree_is_the_one_the_heap_pops(kind):
    edges, roots = KINDS[kind](4, 11), torch.tensor([4, 5, 6, 7])
    trees = build(edges, roots, 16, max_depth=3)
    for row in range(4):
        children, tokens = children_of(edges, row, roots)
        expected = {tokens(path): score for path, score in best_first(children, 16, 3)}
        found = paths_of(trees, row)
        assert found.keys() == expected.keys()
        assert all(math.isclose(found[p], expected[p], abs_tol=1e-5) for p in found)


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_come_in_falling_order_with_parents_first_and_distinct_siblings(kind):
    trees = build(KINDS[kind](8, 3), torch.arange(8), 24)
    assert (trees.scores[:, 1:] <= trees.scores[:, :-1]).all()
    assert (trees.parents < torch.arange(24)).all()
    for row in range(8):
        assert len(paths_of(trees, row)) == int(trees.sizes[row]), "two nodes spell the same path"
        for node in range(1, 24):
            parent = int(trees.parents[row, node])
            assert trees.depths[row, node] == trees.depths[row, parent] + 1


def test_smaller_budgets_of_some_requests_give_their_own_best_trees():
    edges, roots = marginals(3, 5), torch.tensor([1, 2, 3])
    mixed = build(edges, roots, 12, budgets=torch.tensor([12, 5, 1]))
    assert mixed.sizes.tolist() == [12, 5, 1]
    for row, budget in enumerate((12, 5, 1)):
        assert paths_of(mixed, row) == paths_of(build(edges, roots, budget), row)
    assert (mixed.parents[2, 1:] == -1).all()
    assert (mixed.tokens[2] == 3).all()


def test_block_with_fewer_paths_than_the_budget_is_padded():
    edges = marginals(2, 6, depth=1, width=3)
    trees = build(edges, torch.tensor([8, 9]), 10)
    assert trees.sizes.tolist() == [4, 4]
    assert torch.isinf(trees.scores[:, 4:]).all()
    next_token, next_sibling = trees.links()
    assert set(next_token.flatten().tolist() + next_sibling.flatten().tolist()) <= {-1, 1, 2, 3}


def test_impossible_candidates_never_enter_the_tree():
    tokens = torch.arange(6).view(1, 2, 3)
    logprobs = torch.tensor([[[-0.1, float("-inf"), float("-inf")], [-0.2, -1.0, float("-inf")]]])
    trees = build(MarginalScores(tokens, logprobs), torch.tensor([0]), 8)
    assert int(trees.sizes) == 4
    assert set(paths_of(trees, 0)) == {(), (0,), (0, 3), (0, 4)}


def test_certain_drafter_gives_a_chain():
    logprobs = torch.tensor([0.0, -50.0]).expand(1, 5, 2)
    trees = build(MarginalScores(torch.arange(10).view(1, 5, 2), logprobs), torch.tensor([0]), 6)
    assert trees.parents.tolist() == [[-1, 0, 1, 2, 3, 4]]
    assert trees.depths.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_links_ancestors_and_positions_describe_the_parents():
    trees = build(marginals(5, 9), torch.arange(5), 20, budgets=torch.tensor([20, 20, 13, 2, 1]))
    next_token, next_sibling = trees.links()
    seen, positions = trees.ancestors(), trees.positions(torch.tensor([3, 0, 7, 1, 2]))
    for row in range(5):
        for node in range(20):
            alive = node < int(trees.sizes[row])
            kids = [c for c in range(20) if int(trees.parents[row, c]) == node]
            walked, at = [], int(next_token[row, node])
            while at >= 0:
                walked.append(at)
                at = int(next_sibling[row, at])
            assert walked == (kids if alive else [])
            line, at = {node}, int(trees.parents[row, node])
            while at >= 0:
                line.add(at)
                at = int(trees.parents[row, at])
            assert set(seen[row, node].nonzero().flatten().tolist()) == line
            assert positions[row, node] == [3, 0, 7, 1, 2][row] + len(line) - 1


def test_full_mask_is_the_prefix_and_then_the_ancestors():
    trees = build(marginals(3, 10), torch.arange(3), 6)
    lengths, seen = torch.tensor([4, 0, 9]), trees.ancestors()
    expected = torch.cat(
        [torch.cat([torch.ones(6, n, dtype=torch.bool), seen[i]], 1).flatten() for i, n in enumerate((4, 0, 9))]
    )
    assert torch.equal(full_mask(seen, lengths), expected)
    assert torch.equal(full_mask(seen, lengths, total=13), expected)


def test_markov_scores_are_log_probabilities_of_the_biased_logits():
    """With the pool as wide as the vocabulary nothing is left out, so the children are exact."""
    generator = torch.Generator().manual_seed(1)
    logits, before, after = (torch.randn(*s, generator=generator) for s in ((1, 2, 12), (12, 3), (12, 3)))
    edges = MarkovScores(logits, before, after, candidates=12, pool=1)
    tokens, logprobs = edges.expand(1, torch.zeros(1, 2, dtype=torch.int64), torch.tensor([[3, 7]]))
    for parent, token in enumerate((3, 7)):
        exact = (logits[0, 1] + after @ before[token]).log_softmax(-1)
        assert torch.allclose(logprobs[0, parent], exact[tokens[0, parent]], atol=1e-4)
