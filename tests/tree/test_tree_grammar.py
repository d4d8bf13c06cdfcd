"""SGLang's grammar walk over a tree's links: each node gets the mask of its own path, wherever thinking ends."""

from __future__ import annotations

import pytest
import torch

from specpilot_sglang.kernels.tree_build.build import build
from specpilot_sglang.kernels.tree_build.scores import MarginalScores

VOCAB, NODES, THINK_END = 32, 24, 5


class Grammar:
    """Forbids every third token, other ones after each token accepted; keeps what it was told."""

    def __init__(self):
        self.accepted: list[int] = []
        self.filled: list[int] = []

    @staticmethod
    def allowed(accepted):
        return {t for t in range(VOCAB) if (t + sum(accepted)) % 3}

    def accept_token(self, token):
        assert token in self.allowed(self.accepted), "a token was accepted that the mask before forbids"
        self.accepted.append(token)

    def rollback(self, count):
        del self.accepted[len(self.accepted) - count :]

    def is_terminated(self):
        return False

    def fill_vocab_mask(self, mask, row):
        assert row not in self.filled, "a node was visited twice"
        self.filled.append(row)
        bits = sum(1 << t for t in self.allowed(self.accepted))
        mask[row, 0] = bits - (1 << 32) if bits >= 1 << 31 else bits


def path_of(trees, row, node):
    path = []
    while node > 0:
        path.append(int(trees.tokens[row, node]))
        node = int(trees.parents[row, node])
    return path[::-1]


@pytest.mark.parametrize("thinking", [False, True])
def test_each_node_has_the_mask_of_its_path_and_the_grammar_ends_where_it_began(thinking):
    from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject
    from sglang.srt.speculative.spec_utils import traverse_tree

    logits = 2 * torch.randn(4, 5, VOCAB, generator=torch.Generator().manual_seed(3))
    logits[:, 1:3, THINK_END] = 6.0  # thinking ends inside the block, at either of two depths
    trees = build(
        MarginalScores.from_logits(logits, NODES), torch.arange(4), NODES, budgets=torch.tensor([24, 24, 9, 1])
    )
    child, sibling = trees.links()
    constrained = 0
    for row in range(4):
        inner = Grammar()
        outer = ReasonerGrammarObject(inner, [THINK_END])
        outer.maybe_init_reasoning(thinking)
        state = dict(vars(outer))
        mask = torch.full((NODES, 1), -1, dtype=torch.int32)
        traverse_tree(child[row], sibling[row], trees.tokens[row], outer, mask, VOCAB)
        assert inner.accepted == []
        assert {k: v for k, v in vars(outer).items() if k != "current_token"} == {
            k: v for k, v in state.items() if k != "current_token"
        }
        for node in range(int(trees.sizes[row])):
            path = path_of(trees, row, node)
            if thinking:
                path = path[path.index(THINK_END) + 1 :] if THINK_END in path else None
            if path is None:
                assert int(mask[node]) == -1, "a grammar held while thinking"
            elif all(token in Grammar.allowed(path[:i]) for i, token in enumerate(path)):
                found = {t for t in range(VOCAB) if int(mask[node]) >> t & 1}
                assert found == Grammar.allowed(path)
                constrained += 1
    assert constrained > 12
