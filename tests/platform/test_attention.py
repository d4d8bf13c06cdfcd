"""Attention of the CPU platform against a plain per-row reference."""

from __future__ import annotations

import math

import pytest
import torch

from specpilot_sglang.platform_cpu.attention_math import attend
from specpilot_sglang.platform_cpu.attention_plan import block_plans

HEADS, KV_HEADS, DIM, POOL = 6, 2, 16, 512


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def pool(dtype=torch.float32):
    return torch.randn(POOL, KV_HEADS, DIM).to(dtype), torch.randn(POOL, KV_HEADS, DIM).to(dtype)


def table(lens, contiguous=False):
    """Position-to-slot map with scattered, disjoint slots (or consecutive ones)."""
    slots = torch.arange(POOL) if contiguous else torch.randperm(POOL)
    rows = torch.zeros(len(lens) + 1, max(lens) + 3, dtype=torch.int32)
    start = 0
    for i, length in enumerate(lens):
        rows[i, :length] = slots[start : start + length]
        start += length
    return rows


def naive(q, keys, values, rows, lens, widths, visible):
    """visible(request, query row, key) -> bool; double precision, one row and head at a time."""
    out, start = [], 0
    for r, (length, width) in enumerate(zip(lens, widths, strict=True)):
        slots = rows[r, :length].long()
        k, v = keys[slots].double(), values[slots].double()
        for i in range(width):
            mask = torch.tensor([visible(r, i, j) for j in range(length)])
            for h in range(HEADS):
                scores = k[:, h // (HEADS // KV_HEADS)] @ q[start + i, h].double() / math.sqrt(DIM)
                weights = torch.softmax(scores.masked_fill(~mask, -math.inf), 0)
                out.append(weights @ v[:, h // (HEADS // KV_HEADS)])
        start += width
    return torch.stack(out).view(start, HEADS * DIM)


def run(q, keys, values, rows, lens, widths, causal=True, window=-1, custom=None, positions=None):
    plans = block_plans(rows, torch.arange(len(lens)), torch.tensor(lens), widths, custom, positions)
    out = torch.full((q.shape[0], HEADS * DIM), math.nan, dtype=q.dtype)
    for plan in plans:
        out[plan.start : plan.start + plan.rows] = attend(
            q[plan.start : plan.start + plan.rows], keys, values, plan, scale=DIM**-0.5, causal=causal, window=window
        )
    return out, plans


CASES = {
    "decode one": ([17], [1]),
    "decode ragged batch": ([17, 3, 40, 1], [1, 1, 1, 1]),
    "decode very ragged (split)": ([2, 3, 4, 5, 6, 7, 300], [1] * 7),
    "prefill without prefix": ([9], [9]),
    "prefill ragged with prefix": ([30, 5, 21], [7, 5, 1]),
    "verify blocks": ([12, 33, 8], [8, 8, 8]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("contiguous", [False, True])
def test_causal_blocks_match_naive(case, contiguous):
    lens, widths = CASES[case]
    keys, values = pool()
    rows = table(lens, contiguous)
    q = torch.randn(sum(widths), HEADS, DIM)
    expected = naive(q, keys, values, rows, lens, widths, lambda r, i, j: j <= lens[r] - widths[r] + i)
    got, _ = run(q, keys, values, rows, lens, widths)
    torch.testing.assert_close(got.double(), expected, atol=2e-6, rtol=1e-5)


def test_long_prefill_takes_the_unfolded_path():
    lens, widths = [260], [240]
    keys, values = pool()
    rows = table(lens)
    q = torch.randn(240, HEADS, DIM)
    expected = naive(q, keys, values, rows, lens, widths, lambda r, i, j: j <= 20 + i)
    torch.testing.assert_close(run(q, keys, values, rows, lens, widths)[0].double(), expected, atol=2e-6, rtol=1e-5)
    lens = [240]
    expected = naive(q, keys, values, rows, lens, widths, lambda r, i, j: j <= i)
    torch.testing.assert_close(run(q, keys, values, rows, lens, widths)[0].double(), expected, atol=2e-6, rtol=1e-5)


def test_draft_block_sees_its_whole_block():
    lens, widths = [12, 33], [8, 8]
    keys, values = pool()
    rows = table(lens)
    q = torch.randn(16, HEADS, DIM)
    expected = naive(q, keys, values, rows, lens, widths, lambda r, i, j: True)
    got, _ = run(q, keys, values, rows, lens, widths, causal=False)
    torch.testing.assert_close(got.double(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [0, 3, 50])
def test_sliding_window_looks_back_that_many_positions(window):
    lens, widths = [30, 12], [5, 5]
    keys, values = pool()
    rows = table(lens)
    q = torch.randn(10, HEADS, DIM)

    def visible(r, i, j):
        at = lens[r] - widths[r] + i
        return at - window <= j <= at

    expected = naive(q, keys, values, rows, lens, widths, visible)
    got, _ = run(q, keys, values, rows, lens, widths, window=window)
    torch.testing.assert_close(got.double(), expected, atol=2e-6, rtol=1e-5)


def tree_mask(parents, prefix):
    """Flat SGLang tree mask of one request: the prefix, then each node's ancestors and itself."""
    width = len(parents)
    mask = torch.zeros(width, prefix + width, dtype=torch.bool)
    mask[:, :prefix] = True
    for node in range(width):
        walk = node
        while walk >= 0:
            mask[node, prefix + walk] = True
            walk = parents[walk]
    return mask


@pytest.mark.parametrize("prefixes", [[6], [6, 19, 1], [1, 400]])
def test_tree_verify_sees_prefix_and_ancestors_only(prefixes):
    trees = [[-1, 0, 0, 1, 1, 2], [-1, 0, 1, 2, 3, 4], [-1, 0, 0, 0, 0, 0]][: len(prefixes)]
    lens, widths = [p + 6 for p in prefixes], [6] * len(prefixes)
    masks = [tree_mask(t, p) for t, p in zip(trees, prefixes, strict=True)]
    keys, values = pool()
    rows = table(lens)
    q = torch.randn(sum(widths), HEADS, DIM)
    expected = naive(q, keys, values, rows, lens, widths, lambda r, i, j: bool(masks[r][i, j]))
    got, _ = run(q, keys, values, rows, lens, widths, custom=torch.cat([m.flatten() for m in masks]))
    torch.testing.assert_close(got.double(), expected, atol=2e-6, rtol=1e-5)


def test_tree_window_counts_depth_not_row():
    parents, prefix, window = [-1, 0, 0, 1], 5, 2
    depth = torch.tensor([0, 1, 1, 2])
    mask = tree_mask(parents, prefix)
    keys, values = pool()
    rows = table([9])
    q = torch.randn(4, HEADS, DIM)
    expected = naive(
        q, keys, values, rows, [9], [4], lambda r, i, j: bool(mask[i, j]) and j >= prefix + int(depth[i]) - window
    )
    got, _ = run(q, keys, values, rows, [9], [4], window=window, custom=mask.flatten(), positions=prefix + depth)
    torch.testing.assert_close(got.double(), expected, atol=2e-6, rtol=1e-5)


def test_linear_tree_mask_equals_causal_bit_for_bit():
    lens, widths = [14, 25], [8, 8]
    keys, values = pool(torch.bfloat16)
    rows = table(lens)
    q = torch.randn(16, HEADS, DIM).bfloat16()
    chain = torch.cat([tree_mask(list(range(-1, 7)), n - 8).flatten() for n in lens])
    assert torch.equal(
        run(q, keys, values, rows, lens, widths)[0], run(q, keys, values, rows, lens, widths, custom=chain)[0]
    )


def test_slots_past_a_request_never_leak_even_when_not_finite():
    lens, widths = [3, 9], [1, 1]
    keys, values = pool()
    rows = table(lens)
    used = torch.cat([rows[i, :n] for i, n in enumerate(lens)]).long()
    poisoned = torch.ones(POOL, dtype=torch.bool)
    poisoned[used] = False
    keys[poisoned] = values[poisoned] = math.nan
    got, plans = run(torch.randn(2, HEADS, DIM), keys, values, rows, lens, widths)
    assert len(plans) == 1
    assert torch.isfinite(got).all()


def test_ragged_batch_splits_rather_than_pads_ten_fold():
    lens = [2, 3, 4, 5, 6, 7, 8, 2000]
    rows = torch.arange(8 * 2003).view(8, 2003)
    plans = block_plans(rows, torch.arange(8), torch.tensor(lens), [1] * 8)
    assert [p.batch for p in plans] == [1] * 8
    assert isinstance(plans[-1].slots, slice)
