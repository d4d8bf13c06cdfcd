"""Times tree building and the kernels around a verify pass: `python -m specpilot_sglang.kernels.tree_build.bench`.

CUDA graphs of many launches, medians of replays; inputs are random. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths
from specpilot_sglang.kernels.tree_build import verify
from specpilot_sglang.kernels.tree_build.best import best_tokens
from specpilot_sglang.kernels.tree_build.build import build
from specpilot_sglang.kernels.tree_build.launch import LinkedTrees, build_linked
from specpilot_sglang.kernels.tree_build.scores import LatticeScores, MarginalScores

LAUNCHES = 20


def microseconds(call: Callable[[], Any], launches: int = LAUNCHES, replays: int = 30) -> float:
    """Median time of one `call` in a CUDA graph of `launches` of them, in microseconds."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            call()
    times = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / launches)
    return sorted(times)[len(times) // 2]


def marginals(batch: int, depth: int, vocab: int, width: int, scale: float = 4.0) -> MarginalScores:
    """Marginals of random logits; at `scale` 4 a tree of 32 nodes over 49,152 tokens is about 5 deep."""
    return MarginalScores.from_logits(scale * torch.randn(batch, depth, vocab, device="cuda"), width)


def main() -> dict[str, Any]:
    """Check the kernels against torch on this GPU, then time them."""
    torch.manual_seed(0)
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for batch, nodes in ((1, 32), (8, 16), (8, 32), (8, 64), (32, 32)):
        edges = marginals(batch, 7, 49152, nodes - 1)
        roots = torch.arange(batch, device="cuda")
        out = LinkedTrees.empty(batch, nodes, "cuda")
        build_linked(edges, roots, nodes, out=out)
        expected = build(edges, roots, nodes)
        same = all(torch.equal(getattr(out.trees, n), getattr(expected, n)) for n in ("tokens", "parents", "depths"))
        lengths = torch.randint(100, 4000, (batch,), device="cuda")
        mask = torch.empty(verify.mask_cells(nodes, batch, 4000 * batch), dtype=torch.bool, device="cuda")
        paths = TreePaths.empty(batch, nodes, 8, "cuda")
        chosen = torch.randint(49152, (batch, nodes), device="cuda")
        slots = torch.arange(batch * nodes, device="cuda")
        table = torch.zeros(batch * nodes, nodes, dtype=torch.int32, device="cuda")
        seen, ends = torch.zeros(2, batch * nodes + 1, dtype=torch.int32, device="cuda")
        seen = seen[1:].contiguous()
        found[f"{batch}x{nodes}"] = {
            "equals_torch": same,
            "depth": expected.depths.max(1).values.float().mean().item(),
            "build_us": microseconds(partial(build_linked, edges, roots, nodes, out=out)),
            "inputs_us": microseconds(partial(verify.write_inputs, out.trees, lengths, 8, mask, paths)),
            "accept_us": microseconds(partial(verify.accept, out.trees, chosen, lengths, 8)),
            "suffixes_us": microseconds(partial(verify.write_suffixes, paths, slots, table, seen, ends)),
        }
    for batch in (1, 8, 64):
        scores = 3 * torch.randn(batch, 7, 16, 16, device="cuda")
        tokens = torch.randint(248320, (batch, 7, 16), device="cuda")
        lattice, roots = LatticeScores.normalised(tokens, scores), torch.arange(batch, device="cuda")
        out = LinkedTrees.empty(batch, 32, "cuda")
        found[f"lattice {batch}x32"] = {"build_us": microseconds(partial(build_linked, lattice, roots, 32, out=out))}
        for vocab in (49152, 248320):
            logits = torch.randn(batch, 7, vocab, device="cuda", dtype=torch.bfloat16)
            best = best_tokens(logits.flatten(0, 1), 31)[0]
            found[f"candidates {batch}x7 of {vocab}"] = {
                "equals_torch": torch.equal(best, logits.flatten(0, 1).float().topk(31).values),
                "us": microseconds(partial(MarginalScores.from_logits, logits, 31), 5),
            }
    return found


if __name__ == "__main__":
    json.dump(main(), sys.stdout, indent=1)
