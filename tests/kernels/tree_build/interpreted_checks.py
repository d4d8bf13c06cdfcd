"""Checks of the builder's kernel, run by `test_tree_heap_kernel.py` in a process under Triton's interpreter."""

from __future__ import annotations

import json
import os
import sys
import traceback

os.environ["TRITON_INTERPRET"] = "1"

import torch

from specpilot_sglang.kernels.tree_build.build import build
from specpilot_sglang.kernels.tree_build.launch import build_marginals
from specpilot_sglang.kernels.tree_build.scores import MarginalScores


def edges_of(batch, depth, width, seed):
    generator = torch.Generator().manual_seed(seed)
    return MarginalScores.from_logits(2 * torch.randn(batch, depth, 50, generator=generator), width)


def check_kernel_builds_the_same_trees():
    for budget, depth, width, limit in ((1, 3, 4, None), (2, 3, 4, None), (16, 7, 15, None), (32, 7, 16, 4)):
        edges, roots = edges_of(3, depth, width, budget), torch.tensor([1, 2, 3])
        expected = build(edges, roots, budget, limit)
        found, child, sibling = build_marginals(edges, roots, budget, limit)
        for name in ("tokens", "parents", "depths", "sizes"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), (budget, name)
        assert torch.allclose(found.scores, expected.scores, atol=1e-6)
        assert [x.tolist() for x in expected.links()] == [child.tolist(), sibling.tolist()]


def check_budgets_of_requests_and_short_blocks_leave_padding():
    edges, roots, budgets = edges_of(3, 1, 5, 9), torch.tensor([1, 2, 3]), torch.tensor([12, 3, 1])
    expected = build(edges, roots, 12, budgets=budgets)
    found, child, sibling = build_marginals(edges, roots, 12, budgets=budgets)
    assert found.sizes.tolist() == expected.sizes.tolist() == [6, 3, 1]
    for name in ("tokens", "parents", "depths", "scores"):
        assert torch.equal(getattr(found, name).isinf(), getattr(expected, name).isinf())
        assert torch.allclose(getattr(found, name).float().clamp(min=-99), getattr(expected, name).float().clamp(-99))
    assert [x.tolist() for x in expected.links()] == [child.tolist(), sibling.tolist()]


def check_ties_still_give_a_best_tree():
    tokens = torch.arange(12).view(1, 3, 4)
    edges = MarginalScores(tokens, torch.tensor([0.0, -1.0, -1.0, -2.0]).expand(1, 3, 4).contiguous())
    found, _, _ = build_marginals(edges, torch.tensor([0]), 14)
    assert torch.equal(found.scores, build(edges, torch.tensor([0]), 14).scores)
    assert (found.parents[0] < torch.arange(14)).all()


def main():
    results = {}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            try:
                check()
                results[name[6:]] = "ok"
            except Exception:
                results[name[6:]] = traceback.format_exc()
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
