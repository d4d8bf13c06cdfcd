"""Checks and times the tree kernels of Gated DeltaNet: `python -m specpilot_sglang.kernels.gated_delta.bench`.

Shapes of Qwen3.5-27B's layers, random inputs, states rotated over several layers so that they come from memory;
CUDA graphs, medians of replays, microseconds a layer. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from specpilot_sglang.kernels.gated_delta import ref, tree
from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths
from specpilot_sglang.kernels.tree_build.bench import microseconds
from specpilot_sglang.kernels.tree_build.build import build
from specpilot_sglang.kernels.tree_build.scores import MarginalScores

KEY_HEADS, VALUE_HEADS, DIM, TAPS, LAYERS = 16, 48, 128, 4, 12
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * DIM
PLANS = [(64, 32, 2), (64, 16, 3), (64, 32, 3), (64, 16, 4), (64, 64, 2), (32, 32, 3)]


class Layers:
    """Random inputs of `LAYERS` layers for `batch` trees of `nodes` rows."""

    def __init__(self, batch: int, nodes: int, scale: float = 6.0) -> None:
        def noise(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.randn(*shape, device="cuda", dtype=dtype)

        half = torch.bfloat16
        logits = scale * noise(batch, 7, 4096)
        self.trees = build(MarginalScores.from_logits(logits, nodes), torch.arange(batch, device="cuda"), nodes)
        self.paths = TreePaths.of(self.trees.parents, 8)
        self.batch, self.nodes, rows = batch, nodes, batch * nodes
        self.x = noise(LAYERS, rows, CHANNELS, dtype=half)
        self.weight = noise(CHANNELS, TAPS, dtype=half)
        self.history = noise(LAYERS, batch, CHANNELS, TAPS - 1, dtype=half)
        self.states = noise(LAYERS, batch, VALUE_HEADS, DIM, DIM)
        self.a, self.b = noise(2, LAYERS, rows, VALUE_HEADS, dtype=half)
        self.a_log, self.dt_bias = noise(2, LAYERS, VALUE_HEADS)
        self.slots = torch.arange(batch, device="cuda", dtype=torch.int32)
        self.mixed, self.kept = torch.empty_like(self.x), torch.empty_like(self.x)
        self.kept_a, self.kept_b = torch.empty_like(self.a), torch.empty_like(self.b)

    def conv(self, layer: int) -> torch.Tensor:
        """Convolution of one layer, into `mixed`."""
        return tree.conv_verify(
            self.x[layer], self.weight, None, self.history[layer], self.slots, self.paths,
            out=self.mixed[layer], keep=self.kept[layer],
        )  # fmt: skip

    def split(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of q, k and v."""
        q, k, v = mixed.split([KEY_HEADS * DIM, KEY_HEADS * DIM, VALUE_HEADS * DIM], -1)
        lead = mixed.shape[:-1]
        return q.view(*lead, KEY_HEADS, DIM), k.view(*lead, KEY_HEADS, DIM), v.view(*lead, VALUE_HEADS, DIM)

    def inputs(self, layer: int) -> list[Any]:
        """What both ways to verify read of one layer."""
        gates = (self.a[layer], self.b[layer], self.a_log[layer], self.dt_bias[layer])
        return [*self.split(self.mixed[layer]), *gates, self.states[layer], self.slots, self.paths]

    def verify(self, layer: int, plan: tuple[int, int, int] = PLANS[0]) -> torch.Tensor:
        """All nodes at once."""
        keep = (self.kept_a[layer], self.kept_b[layer])
        return partial(tree.verify, keep=keep, plan=plan)(*self.inputs(layer))

    def both(self, layer: int) -> torch.Tensor:
        """Convolution and verify of one layer, as a pass launches them."""
        self.conv(layer)
        return self.verify(layer)

    def walk(self, layer: int) -> torch.Tensor:
        """Leaf by leaf."""
        return tree.walk(*self.inputs(layer))

    def oracle(self, layer: int) -> torch.Tensor:
        """Float64 outputs of the torch oracle."""
        q, k, v = (x.double() for x in self.split(self.mixed[layer]))
        a, b = self.a[layer].double(), self.b[layer].double()
        g, beta = ref.gates(a, b, self.a_log[layer].double(), self.dt_bias[layer].double())
        q, k = ref.prepare_qk(q, k, VALUE_HEADS)
        rows: list[Any] = [x.view(self.batch, self.nodes, *x.shape[1:]) for x in (q, k, v, g, beta)]
        q, k, v, g, beta = rows
        out, _ = ref.recurrent(q, k, v, g, beta, self.states[layer].double(), self.trees.parents)
        return out.flatten(0, 1)

    def commit(self) -> None:
        """Replay the deepest path of every tree, in all layers."""
        deepest = self.trees.depths.argmax(1)
        nodes = self.paths.nodes_of[torch.arange(self.batch, device="cuda"), deepest].clamp(min=0)
        lens = self.trees.depths.max(1).values.int() + 1
        path = tree.Path(nodes.contiguous(), lens, self.slots)
        _, k, v = self.split(self.mixed)
        tree.commit(k, v, self.kept_a, self.kept_b, self.a_log, self.dt_bias, self.states, path, self.nodes)
        tree.conv_commit(self.kept, self.history, path, self.nodes)


def a_layer(call: Callable[[int], Any]) -> float:
    """Microseconds a layer of a call for all layers."""
    return microseconds(lambda: [call(layer) for layer in range(LAYERS)], 2) / LAYERS


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative error of a whole result."""
    return float((found.double() - expected).norm() / expected.norm())


def main() -> dict[str, Any]:
    """Check both ways to verify against float64, then time them."""
    torch.manual_seed(0)
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for batch, nodes in ((1, 32), (2, 32), (4, 32), (8, 32), (8, 8), (8, 16), (4, 64), (64, 8)):
        case = Layers(batch, nodes)
        for layer in range(LAYERS):
            case.conv(layer)
        expected = case.oracle(0)
        result = found[f"{batch}x{nodes}"] = {
            "depth": float(case.trees.depths.max(1).values.float().mean()),
            "leaves": float((case.paths.owners == torch.arange(nodes, device="cuda")).float().sum(1).mean()),
            "walk_error": error(case.walk(0), expected),
            "kept": bool(torch.equal(case.kept, case.x)),
        }
        for plan in PLANS:
            try:
                result[f"verify_error {plan}"] = error(case.verify(0, plan), expected)
                result[f"verify_us {plan}"] = a_layer(partial(case.verify, plan=plan))
            except Exception as failure:
                result[f"verify_us {plan}"] = f"{type(failure).__name__}: {failure}"[:200]
        result["kept_gates"] = bool(torch.equal(case.kept_a, case.a) and torch.equal(case.kept_b, case.b))
        result["both_us"] = a_layer(case.both)
        result["walk_us"] = a_layer(case.walk)
        result["conv_us"] = a_layer(case.conv)
        result["commit_us"] = microseconds(case.commit, 2) / LAYERS
    return found


if __name__ == "__main__":
    json.dump(main(), sys.stdout, indent=1)
