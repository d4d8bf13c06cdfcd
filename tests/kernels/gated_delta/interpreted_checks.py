"""Checks of the tree kernels, run by `test_tree_kernels.py` in a process of their own under Triton's interpreter.

Triton decides when it is imported whether its functions are interpreted, so the test process itself cannot.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

os.environ["TRITON_INTERPRET"] = "1"

import torch

from specpilot_sglang.kernels.gated_delta import conv_ref, ref, tree, tree_ref
from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths

BATCH, NODES, WIDTH, SLOTS = 3, 12, 7, 6
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 16, 32
CHANNELS, TAPS = 40, 4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def random_parents(batch, nodes, width, seed):
    generator = torch.Generator().manual_seed(seed)
    parents, depths = torch.full((batch, nodes), -1), torch.zeros(batch, nodes, dtype=torch.int64)
    for row in range(batch):
        for node in range(1, nodes):
            choices = [p for p in range(node) if depths[row, p] < width - 1]
            # Mostly the newest node, so that deep paths occur.
            pick = (
                choices[-1]
                if torch.rand(1, generator=generator) < 0.6
                else choices[int(torch.randint(len(choices), (1,), generator=generator))]
            )
            parents[row, node] = pick
            depths[row, node] = depths[row, pick] + 1
    return parents


class Case:
    """Random inputs of one layer stack."""

    def __init__(self, dtype=torch.float32, layers=1, batch=BATCH, nodes=NODES, width=WIDTH, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def noise(*shape):
            return torch.randn(*shape, generator=generator)

        self.layers, self.batch, self.nodes = layers, batch, nodes
        rows = batch * nodes
        # As in the server, q, k and v are views of one row.
        sizes = [KEY_HEADS * KEY_DIM, KEY_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM]
        mixed = noise(layers, rows, sum(sizes)).to(dtype)
        q, k, v = mixed.split(sizes, -1)
        self.q, self.k = (x.view(layers, rows, KEY_HEADS, KEY_DIM) for x in (q, k))
        self.v = v.view(layers, rows, VALUE_HEADS, VALUE_DIM)
        self.a, self.b = (noise(layers, rows, VALUE_HEADS).to(dtype) for _ in range(2))
        self.a_log, self.dt_bias = noise(layers, VALUE_HEADS) - 2, noise(layers, VALUE_HEADS)
        self.states = noise(layers, SLOTS, VALUE_HEADS, VALUE_DIM, KEY_DIM).to(dtype)
        self.slots = torch.tensor([4, 0, 2][:batch], dtype=torch.int32)
        self.parents = random_parents(batch, nodes, width, seed + 1)
        self.paths = TreePaths.of(self.parents, width)
        self.x = noise(layers, rows, CHANNELS).to(dtype)
        self.weight, self.bias = noise(CHANNELS, TAPS), noise(CHANNELS)
        self.history = noise(layers, SLOTS, CHANNELS, TAPS - 1).to(dtype)

    def oracle(self, layer=0):
        """Outputs and states of every node by the torch oracle, without rounding in between."""
        heads = VALUE_HEADS
        g, beta = ref.gates(self.a[layer], self.b[layer], self.a_log[layer], self.dt_bias[layer])
        q, k = ref.prepare_qk(self.q[layer], self.k[layer], heads)
        rows = [x.view(self.batch, self.nodes, *x.shape[1:]) for x in (q, k, self.v[layer], g, beta)]
        return ref.recurrent(*rows, self.states[layer][self.slots.long()], self.parents)

    def verify(self, layer=0, slots=None, states=None, way=tree.verify, **kwargs):
        return way(
            self.q[layer],
            self.k[layer],
            self.v[layer],
            self.a[layer],
            self.b[layer],
            self.a_log[layer],
            self.dt_bias[layer],
            self.states[layer] if states is None else states,
            self.slots if slots is None else slots,
            self.paths,
            **kwargs,
        )

    def commit(self, states, path):
        tree.commit(self.k, self.v, self.a, self.b, self.a_log, self.dt_bias, states, path, self.nodes)

    def line(self, request, node):
        """Nodes from the root to `node`."""
        found = [node]
        while self.parents[request, found[0]] >= 0:
            found.insert(0, int(self.parents[request, found[0]]))
        return found

    def path(self, nodes, width=WIDTH, **track):
        """The path to one node for each request; -1 accepts nothing and is padding."""
        table, lens = torch.zeros(self.batch, width, dtype=torch.int32), torch.zeros(self.batch, dtype=torch.int32)
        for request, node in enumerate(nodes):
            line = self.line(request, node) if node >= 0 else []
            table[request, : len(line)] = torch.tensor(line, dtype=torch.int32)
            lens[request] = len(line)
        return tree.Path(table, lens, self.slots, **track)


def check_verify_matches_the_oracle():
    for way, nodes in ((tree.verify, NODES), (tree.verify, 33), (tree.walk, NODES)):
        case = Case(nodes=nodes)
        before = case.states.clone()
        expected, _ = case.oracle()
        found = case.verify(way=way).view(case.batch, case.nodes, VALUE_HEADS, VALUE_DIM)
        assert torch.allclose(found, expected, atol=2e-5, rtol=1e-4), (way, nodes, (found - expected).abs().max())
        assert torch.equal(case.states, before)


def check_verify_of_deep_paths_stays_exact_when_writes_repeat():
    """Equal keys and full write strength: the sums of products that a power series would build cancel here."""
    case = Case(nodes=17, width=17, batch=1)
    case.parents[0] = torch.arange(-1, 16)
    case.paths = TreePaths.of(case.parents, 17)
    case.k[:] = case.k[:, :1]
    case.b[:] = 20.0
    case.a[:] = -20.0
    expected, _ = case.oracle()
    found = case.verify().view(expected.shape)
    assert torch.allclose(found, expected, atol=5e-5, rtol=1e-4), (found - expected).abs().max()


def check_verify_of_bf16_inputs_over_fp32_states_loses_nothing_but_the_output():
    case = Case(torch.bfloat16)
    case.states = torch.randn(case.states.shape, generator=torch.Generator().manual_seed(7))
    expected, _ = case.oracle()
    found = case.verify().view(expected.shape)
    off = (found.float() - expected).abs() / expected.abs().clamp(min=0.05)
    # The interpreter cuts a float32 off where a GPU rounds it to BF16.
    assert off.max() < 2**-7 + 1e-3, off.max()


def check_verify_of_bf16_states_matches_the_oracle():
    for way in (tree.verify, tree.walk):
        case = Case(torch.bfloat16)
        expected, _ = case.oracle()
        found = case.verify(way=way).view(case.batch, case.nodes, VALUE_HEADS, VALUE_DIM).float()
        assert torch.allclose(found, expected, atol=0.1, rtol=0.05), (way, (found - expected).abs().max())


def check_inputs_are_kept_on_the_way():
    case = Case(torch.bfloat16)
    slots = torch.tensor([4, -1, 2], dtype=torch.int32)
    keep = torch.empty_like(case.a[0]), torch.empty_like(case.b[0])
    found = case.verify(slots=slots, keep=keep)
    assert torch.equal(found, case.verify(slots=slots))
    assert torch.equal(keep[0], case.a[0])
    assert torch.equal(keep[1], case.b[0])
    conv = (case.x[0], case.weight, case.bias, case.history[0], slots, case.paths)
    out, kept = torch.full_like(case.x[0], 9), torch.full_like(case.x[0], 9)
    assert tree.conv_verify(*conv, out=out, keep=kept) is out
    assert torch.equal(out, tree.conv_verify(*conv))
    live = kept.view(BATCH, NODES, -1)
    assert torch.equal(live[[0, 2]], case.x[0].view(live.shape)[[0, 2]])
    assert (live[1] == 9).all()


def check_commit_matches_the_oracle():
    case = Case(layers=2)
    nodes = [7, 11, 3]
    states = case.states.clone()
    case.commit(states, case.path(nodes))
    for layer in range(2):
        _, expected = case.oracle(layer)
        for request, node in enumerate(nodes):
            found = states[layer, case.slots[request]]
            assert torch.allclose(found, expected[request, node], atol=1e-5, rtol=1e-5)


def _one_token_at_a_time(case, line):
    """Plain decoding of a path: commits of one token each, through the slot's own type; states after each token."""
    states, after = case.states.clone(), []
    for at in line:
        case.commit(states, tree.Path(torch.tensor([[at]], dtype=torch.int32), torch.tensor([1]), case.slots))
        after.append(states[:, case.slots[0]].clone())
    return after


def _every_path(dtype):
    case = Case(dtype, nodes=22, width=16, batch=1, seed=5)
    # A spine as deep as paths may be, and branches of it.
    case.parents[0, :16] = torch.arange(-1, 15)
    case.parents[0, 16:] = torch.tensor([0, 16, 2, 18, 19, 8])
    case.paths = TreePaths.of(case.parents, 16)
    assert case.paths.depths.max() == 15
    leaves = [n for n in range(22) if n not in case.parents[0].tolist()]
    assert len(leaves) == 4
    for leaf in leaves:
        line = case.line(0, leaf)
        for node, expected in zip(line, _one_token_at_a_time(case, line), strict=True):
            states = case.states.clone()
            case.commit(states, case.path([node], width=16))
            assert torch.equal(states[:, case.slots[0]], expected), (node, dtype)


def check_commit_of_every_path_is_bitwise_sequential_fp32():
    _every_path(torch.float32)


def check_commit_of_every_path_is_bitwise_sequential_bf16():
    _every_path(torch.bfloat16)


def check_walk_is_bitwise_what_decoding_the_path_gives():
    """A node's output must be the same when its parent is committed first and it is verified alone."""
    for dtype in DTYPES.values():
        case = Case(dtype, batch=1)
        whole = case.verify(way=tree.walk)
        for node in range(case.nodes):
            states = case.states.clone()
            parent = int(case.parents[0, node])
            if parent >= 0:
                case.commit(states, case.path([parent]))
            alone = tree.walk(
                *(x[0, node : node + 1] for x in (case.q, case.k, case.v, case.a, case.b)),
                case.a_log[0],
                case.dt_bias[0],
                states[0],
                case.slots,
                TreePaths.of(torch.tensor([[-1]]), 1),
            )
            assert torch.equal(alone[0], whole[node]), (dtype, node)


def check_padded_rows_touch_no_slot():
    case = Case()
    slots = torch.tensor([4, -1, -1], dtype=torch.int32)
    out = case.verify(slots=slots).view(case.batch, case.nodes, -1)
    assert (out[1:] == 0).all()
    assert (out[0] != 0).any()
    states, history = case.states.clone(), case.history.clone()
    path = case.path([7, 11, 3])
    path = tree.Path(path.nodes, path.lens, slots)
    case.commit(states, path)
    tree.conv_commit(case.x, history, path, case.nodes)
    others = [s for s in range(SLOTS) if s != 4]
    assert torch.equal(states[:, others], case.states[:, others])
    assert torch.equal(history[:, others], case.history[:, others])
    assert not torch.equal(states[:, 4], case.states[:, 4])
    conv = tree.conv_verify(case.x[0], case.weight, case.bias, case.history[0], slots, case.paths)
    assert (conv.view(case.batch, case.nodes, -1)[1:] == 0).all()


def check_snapshots_at_a_track_boundary():
    case = Case(layers=2)
    track = {
        "track_slots": torch.tensor([1, -1, 5], dtype=torch.int32),
        "track_steps": torch.tensor([1, 0, -1], dtype=torch.int32),
    }
    nodes = [int(case.paths.depths[0].argmax()), 2, 3]
    path = case.path(nodes, **track)
    states, history = case.states.clone(), case.history.clone()
    case.commit(states, path)
    tree.conv_commit(case.x, history, path, case.nodes)
    short, short_history = case.states.clone(), case.history.clone()
    boundary = case.path([case.line(0, nodes[0])[1], -1, -1])
    case.commit(short, boundary)
    tree.conv_commit(case.x, short_history, boundary, case.nodes)
    assert torch.equal(states[:, 1], short[:, 4])
    assert torch.equal(history[:, 1], short_history[:, 4])
    assert torch.equal(states[:, 5], case.states[:, 5])
    assert torch.equal(history[:, 5], case.history[:, 5])


def check_convolution_matches_the_oracle():
    for dtype in DTYPES.values():
        case = Case(dtype)
        found = tree.conv_verify(case.x[0], case.weight, case.bias, case.history[0], case.slots, case.paths)
        x = case.x[0].view(case.batch, case.nodes, CHANNELS)
        expected, states = conv_ref.causal_conv1d(
            x, case.weight, case.bias, case.history[0][case.slots.long()], case.parents
        )
        close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
        assert torch.allclose(found.view(x.shape).float(), expected.float(), **close)
        for node in range(case.nodes):
            history = case.history.clone()
            tree.conv_commit(case.x, history, case.path([node] * case.batch), case.nodes)
            for request in range(case.batch):
                assert torch.equal(history[0, case.slots[request]], states[request, node]), (dtype, node)


def check_torch_twin_does_the_same():
    for dtype in DTYPES.values():
        case = Case(dtype, layers=2)
        close = {"atol": 2e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 0.06, "rtol": 0.05}
        slots = torch.tensor([4, -1, 2], dtype=torch.int32)
        inputs = (case.q, case.k, case.v, case.a, case.b, case.a_log, case.dt_bias, case.states)
        twin = tree_ref.verify(*(x[0] for x in inputs), slots, case.paths)
        assert torch.allclose(case.verify(slots=slots).float(), twin.float(), **close)
        conv = (case.x[0], case.weight, case.bias, case.history[0], slots, case.paths)
        assert torch.allclose(tree.conv_verify(*conv).float(), tree_ref.conv_verify(*conv).float(), **close)
        track = {"track_slots": [1, 3, -1], "track_steps": [1, 0, 0]}
        track = {name: torch.tensor(value, dtype=torch.int32) for name, value in track.items()}
        nodes = [int(case.paths.depths[0].argmax()), 2, 3]
        path = case.path(nodes, **track)
        for which in (path, tree.Path(path.nodes, path.lens, slots, **track)):
            states, twins = case.states.clone(), case.states.clone()
            case.commit(states, which)
            tree_ref.commit(case.k, case.v, case.a, case.b, case.a_log, case.dt_bias, twins, which, case.nodes)
            assert torch.allclose(states.float(), twins.float(), **close)
            assert torch.equal((states != case.states).flatten(2).any(2), (twins != case.states).flatten(2).any(2))
            history, twin_history = case.history.clone(), case.history.clone()
            tree.conv_commit(case.x, history, which, case.nodes)
            tree_ref.conv_commit(case.x, twin_history, which, case.nodes)
            assert torch.equal(history, twin_history)


def check_bad_shapes_are_refused():
    case = Case()
    message = ""
    try:
        tree.verify(
            case.q[0],
            case.k[0],
            case.v[0][:, :2],
            case.a[0],
            case.b[0],
            case.a_log[0],
            case.dt_bias[0],
            case.states[0],
            case.slots,
            case.paths,
        )
    except ValueError as exc:
        message = str(exc)
    assert "do not fit" in message


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
