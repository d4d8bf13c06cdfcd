"""On a GPU with SGLang: the fused kernel attends a node's ancestors and cached tokens as float64 attention does."""

from __future__ import annotations

import pytest
import torch

from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("batch", "nodes", "prefix"), [(1, 32, 300), (8, 32, 70), (3, 16, 1)])
def test_cut_page_tables_give_attention_over_prefix_and_ancestors(batch, nodes, prefix):
    fused = pytest.importorskip("sglang.kernels.ops.attention.suffix_attention_merge")
    heads, kv_heads, dim, width = 24, 4, 256, 8
    generator = torch.Generator().manual_seed(1)
    parents = torch.full((batch, nodes), -1)
    depth = torch.zeros(batch, nodes, dtype=torch.long)
    for row in range(batch):
        for node in range(1, nodes):
            fit = [p for p in range(node) if depth[row, p] < width - 1]
            parents[row, node] = fit[int(torch.randint(len(fit), (1,), generator=generator))]
            depth[row, node] = depth[row, parents[row, node]] + 1
    paths = TreePaths.of(parents, width)
    rows = batch * nodes
    q = torch.randn(rows, heads, dim, dtype=torch.bfloat16, device="cuda")
    k, v = torch.randn(2, batch * (prefix + nodes), kv_heads, dim, dtype=torch.bfloat16, device="cuda")
    table = torch.zeros(rows, nodes, dtype=torch.int32)
    seen = torch.zeros(batch, nodes, prefix + nodes, dtype=torch.bool)
    seen[:, :, :prefix] = True
    for row in range(batch):
        for node in range(nodes):
            line = [n for n in paths.nodes_of[row, node].tolist() if n >= 0]
            seen[row, node, [prefix + n for n in line]] = True
            slots = [row * (prefix + nodes) + prefix + n for n in sorted(line)]
            table[row * nodes + node, : len(line)] = torch.tensor(slots)
    lengths = (paths.depths.flatten() + 1).int().cuda()
    exact_q = q.double().view(batch, nodes, kv_heads, heads // kv_heads, dim) / dim**0.5
    exact_k, exact_v = (x.double().view(batch, prefix + nodes, kv_heads, dim) for x in (k, v))
    scores = torch.einsum("bnhgd,bkhd->bnhgk", exact_q, exact_k)
    first = scores[..., :prefix]
    before = torch.einsum("bnhgk,bkhd->bnhgd", first.softmax(-1), exact_v[:, :prefix]).reshape(rows, heads, dim)
    whole = scores.masked_fill(~seen.cuda()[:, :, None, None, :], float("-inf"))
    expected = torch.einsum("bnhgk,bkhd->bnhgd", whole.softmax(-1), exact_v).reshape(rows, heads, dim)
    lse = first.logsumexp(-1).reshape(rows, heads).T.float().contiguous()
    found = fused.merge_suffix_attention_in_place(
        q=q, k_cache=k, v_cache=v, suffix_page_table=table.cuda()[:, :width], suffix_cache_seqlens=lengths,
        prefix=before.bfloat16(), prefix_lse=lse, softmax_scale=dim**-0.5,
    )  # fmt: skip
    assert torch.allclose(found.double(), expected, atol=2e-2, rtol=2e-2)
    assert not torch.allclose(before, expected, atol=2e-2, rtol=2e-2)
