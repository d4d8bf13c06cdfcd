"""Checks of the builder's kernel, run by `test_tree_heap_kernel.py` in a process under Triton's interpreter."""

from __future__ import annotations

import json
import os
import sys
import traceback
import types

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton.language as tl

from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths
from specpilot_sglang.kernels.tree_build import verify, verify_kernels
from specpilot_sglang.kernels.tree_build.best import best_tokens
from specpilot_sglang.kernels.tree_build.build import build
from specpilot_sglang.kernels.tree_build.launch import LinkedTrees, build_linked, build_marginals
from specpilot_sglang.kernels.tree_build.scores import LatticeScores, MarginalScores
from specpilot_sglang.kernels.tree_build.tree import full_mask


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


def check_best_tokens_of_strided_rows_and_their_normaliser():
    generator = torch.Generator().manual_seed(5)
    # 40 blocks and a part of one; rows are cut out of longer ones, as a vocabulary's padding is.
    wide = torch.randn(3, 5300, generator=generator).bfloat16()
    wide[:, 5200:] = 99.0
    wide[1, 0:128:3] = 7.0  # the best ones share a block
    wide[2, 40:5000] = float("-inf")
    logits = wide[:, :5130]
    for count in (1, 7, 20):
        values, tokens, norm = best_tokens(logits, count)
        expected = logits.float().topk(count, dim=-1).values
        assert torch.equal(values, expected), count
        assert torch.equal(logits.float().gather(1, tokens), values)
        assert all(len(set(row.tolist())) == count for row in tokens)
        assert torch.allclose(norm, logits.float().logsumexp(-1), atol=1e-5)
    assert torch.equal(best_tokens(logits, 30)[0], logits.float().topk(30, dim=-1).values)  # more than half the blocks


def check_ties_still_give_a_best_tree():
    tokens = torch.arange(12).view(1, 3, 4)
    edges = MarginalScores(tokens, torch.tensor([0.0, -1.0, -1.0, -2.0]).expand(1, 3, 4).contiguous())
    found, _, _ = build_marginals(edges, torch.tensor([0]), 14)
    assert torch.equal(found.scores, build(edges, torch.tensor([0]), 14).scores)
    assert (found.parents[0] < torch.arange(14)).all()


def check_lattice_gives_the_same_trees():
    generator = torch.Generator().manual_seed(3)
    for budget, limit in ((24, None), (12, 2)):
        tokens = torch.stack([torch.randperm(50, generator=generator)[:5] for _ in range(3 * 4)]).view(3, 4, 5)
        edges = LatticeScores.normalised(tokens, 2 * torch.randn(3, 4, 5, 5, generator=generator))
        roots = torch.tensor([1, 2, 3])
        expected = build(edges, roots, budget, limit)
        found = build_linked(edges, roots, budget, limit)
        for name in ("tokens", "parents", "depths", "sizes"):
            assert torch.equal(getattr(found.trees, name), getattr(expected, name)), (budget, name)
        assert [x.tolist() for x in expected.links()] == [found.child.tolist(), found.sibling.tolist()]


def padded_trees(nodes, budget, budgets=None, seed=5):
    """Trees in buffers of the caller's that hold rubbish from the step before."""
    edges, roots = edges_of(3, 4, 6, seed), torch.tensor([[1, 7], [2, 7], [3, 7]])[:, 0]
    out = LinkedTrees.empty(3, nodes, "cpu")
    for tensor in (out.trees.tokens, out.trees.parents, out.trees.depths, out.child, out.sibling):
        tensor.fill_(11)
    return build_linked(edges, roots, budget, budgets=budgets, out=out), build(edges, roots, budget, budgets=budgets)


def check_a_smaller_tree_is_padded_up_to_its_buffers():
    found, expected = padded_trees(16, 11)
    assert torch.equal(found.trees.tokens[:, :11], expected.tokens)
    assert torch.equal(found.trees.tokens[:, 11:], expected.tokens[:, :1].expand(-1, 5))
    assert torch.equal(found.trees.parents[:, :11], expected.parents)
    assert (found.trees.parents[:, 11:] == -1).all()
    assert (found.trees.depths[:, 11:] == 0).all()
    assert (found.child[:, 11:] == -1).all()
    assert found.trees.sizes.tolist() == expected.sizes.tolist()


def check_verify_inputs_are_those_of_torch():
    lengths = torch.tensor([5, 0, 9])
    for budgets in (None, torch.tensor([10, 1, 4])):
        made, _ = padded_trees(12, 10, budgets)
        expected = full_mask(made.trees.ancestors(), lengths)
        mask = torch.ones(verify.mask_cells(12, 3, 20), dtype=torch.bool)
        room = TreePaths.empty(5, 12, 5, "cpu")
        room.nodes_of.fill_(7)
        positions = verify.write_inputs(made.trees, lengths, 5, mask, room.first(3), owners=True)
        assert torch.equal(mask[: len(expected)], expected)
        assert mask[len(expected) :].all(), "cells past the trees were written"
        assert torch.equal(positions, made.trees.positions(lengths))
        paths = TreePaths.of(made.trees.parents, 5)
        for name in ("nodes_of", "depths", "owners", "ancestors"):
            assert torch.equal(getattr(room.first(3), name), getattr(paths, name)), name
        assert (room.nodes_of[3:] == 7).all()


def check_page_table_of_paths_is_what_the_mask_gives():
    """As SGLang's FlashAttention backend derives it: slots a node's mask row admits, in rising order of nodes."""
    made, _ = padded_trees(12, 10, torch.tensor([10, 1, 7]))
    slots = torch.randperm(200, generator=torch.Generator().manual_seed(2))[:36]
    table, seen = torch.full((48, 12), 7, dtype=torch.int32), torch.full((48,), 99, dtype=torch.int32)
    ends = torch.zeros(49, dtype=torch.int32)
    verify.write_suffixes(TreePaths.of(made.trees.parents, 5), slots, table, seen, ends)
    ancestors = made.trees.ancestors()
    for row in range(36):
        expected = slots.view(3, 12)[row // 12][ancestors[row // 12, row % 12]].tolist()
        assert table[row, : int(seen[row])].tolist() == expected, row
    assert (seen[36:] == 1).all()
    assert ends[1:].tolist() == seen.cumsum(0).tolist()
    assert (table[36:] == 7).all()


def check_masks_and_page_tables_of_many_requests_lie_behind_those_before():
    """More requests than one round of a kernel adds up, and more rows; its rounds are made short, for speed."""
    rounds = verify_kernels._TOGETHER, verify_kernels._ROWS
    verify_kernels._TOGETHER, verify_kernels._ROWS = tl.constexpr(4), tl.constexpr(8)
    try:
        many_requests(10, 4)
    finally:
        verify_kernels._TOGETHER, verify_kernels._ROWS = rounds


def many_requests(batch, nodes):
    made = build_linked(edges_of(batch, 3, 4, 1), torch.arange(batch), nodes)
    lengths = torch.arange(batch) % 7
    expected = full_mask(made.trees.ancestors(), lengths)
    mask = torch.ones(verify.mask_cells(nodes, batch, int(lengths.sum())), dtype=torch.bool)
    verify.write_inputs(made.trees, lengths, 4, mask, None)
    assert torch.equal(mask, expected)
    rows = (batch + 3) * nodes
    table, seen = torch.zeros(rows, nodes, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32)
    ends = torch.zeros(rows + 1, dtype=torch.int32)
    verify.write_suffixes(TreePaths.of(made.trees.parents, 4), torch.arange(batch * nodes), table, seen, ends)
    assert seen[: batch * nodes].tolist() == made.trees.ancestors().sum(-1).flatten().tolist()
    assert ends[1:].tolist() == seen.cumsum(0).tolist()


def check_acceptance_is_that_of_torch():
    from specpilot_sglang.tree.accept import walk

    generator, lengths = torch.Generator().manual_seed(8), torch.tensor([5, 0, 9])
    seen = set()
    for agreement in (0.0, 0.6, 1.0):
        made, _ = padded_trees(12, 12, torch.tensor([12, 7, 1]), seed=6)
        trees = made.trees
        chosen = torch.randint(50, (3, 12), generator=generator)
        for row in range(3):
            for node in reversed(range(1, int(trees.sizes[row]))):
                if torch.rand(1, generator=generator) < agreement:
                    chosen[row, int(trees.parents[row, node])] = trees.tokens[row, node]
        expected = walk(trees, chosen, lengths, 5)
        window = torch.randperm(36, generator=generator).view(3, 12)
        found = verify.accept(trees, chosen, lengths, 5, window)
        index, front, lens, emitted, bonus, new_lens = found[:6]
        assert torch.equal(found.rows, front + 12 * torch.arange(3)[:, None])
        assert torch.equal(found.positions, lengths[:, None] + torch.arange(5))
        assert torch.equal(found.locs, window[:, :5])
        again = walk(trees, chosen, lengths, 5, window)
        assert all(torch.equal(getattr(found, name), getattr(again, name)) for name in ("rows", "positions", "locs"))
        assert torch.equal(index, expected.index)
        assert torch.equal(front, expected.front)
        assert torch.equal(lens, expected.lens)
        assert torch.equal(bonus, expected.bonus)
        assert torch.equal(new_lens, expected.new_lens)
        for row, length in enumerate(lens.tolist()):
            assert emitted[row, :length].tolist() == expected.emitted[row, :length].tolist()
            assert (emitted[row, length:] == 0).all()
        seen |= set(lens.tolist())
    assert len(seen) > 2, seen


def check_simulated_acceptance_is_that_of_torch():
    from specpilot_sglang.tree.accept import walk
    from specpilot_sglang.tree.simulate import forced

    lengths = torch.tensor([5, 0, 9])
    made, _ = padded_trees(12, 12, torch.tensor([12, 7, 1]), seed=6)
    chosen = torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(8))
    for length in (1, 3, 9):
        expected = walk(made.trees, forced(made, chosen, length), lengths, 5)
        found = verify.accept(made.trees, chosen, lengths, 5, simulated=(made.child, length))
        for name in ("index", "lens", "bonus", "new_lens", "locs"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), (length, name)


def check_a_step_opens_with_the_block_and_the_window_behind_the_cached_tokens():
    table = torch.arange(4 * 30, dtype=torch.int32).view(4, 30)
    bonus, lengths, pools = torch.tensor([7, 8, 9]), torch.tensor([5, 0, 27]), torch.tensor([2, 0, 3])
    for block, nodes in ((4, 11), (8, 3)):
        opened = verify.open_step(bonus, lengths, pools, table, block, nodes, 1)
        places = lengths[:, None] + torch.arange(max(block, nodes))
        slots = torch.where(places < 30, table[pools[:, None], places.clamp(max=29)], 0).long()
        assert torch.equal(opened.positions, places[:, :block])
        assert torch.equal(opened.slots, slots[:, :block])
        assert torch.equal(opened.window, slots[:, :nodes])
        assert opened.ids.tolist() == [[token, *[1] * (block - 1)] for token in (7, 8, 9)]


def check_accepted_rows_move_to_the_front_in_place():
    """Node 2's row is read for place 1 and overwritten by node 5's, which goes to place 2."""
    pool = types.SimpleNamespace(buffers=[torch.arange(40 * w, dtype=torch.int16).view(40, w) for w in (6, 700)])
    pool.data_ptrs = torch.tensor([b.data_ptr() for b in pool.buffers], dtype=torch.uint64)
    pool.data_strides = torch.tensor([b.stride(0) * 2 for b in pool.buffers])
    pool._kv_copy_config = {"byte_tiles": 11, "bytes_per_tile": 128}
    before = [b.clone() for b in pool.buffers]
    slots = torch.tensor([[30, 31, 32, 33, 34, 35], [8, 3, 9, 1, 7, 0]])
    index, lens = torch.tensor([[0, 2, 5, -1], [0, 1, 2, 4]]), torch.tensor([3, 4], dtype=torch.int32)
    verify.move_rows(pool, slots, index, lens)
    for buffer, old in zip(pool.buffers, before, strict=True):
        moved = old.clone()
        moved[31], moved[32], moved[1] = old[32], old[35], old[7]
        assert torch.equal(buffer, moved)


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
