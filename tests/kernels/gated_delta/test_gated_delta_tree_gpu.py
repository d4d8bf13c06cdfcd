"""Gated DeltaNet's tree kernels and the tree builder on a GPU, at the shapes of a real model, against torch."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=[(1, 32), (8, 32), (3, 16), (2, 64)])
def case(request):
    from specpilot_sglang.kernels.gated_delta.bench import LAYERS, Layers

    torch.manual_seed(0)
    made = Layers(*request.param)
    for layer in range(LAYERS):
        made.conv(layer)
    return made


def test_verify_loses_nothing_but_the_outputs_rounding(case):
    """BF16 inputs over float32 states: three exact parts of the state, so only the output is rounded."""
    from specpilot_sglang.kernels.gated_delta.bench import PLANS, error

    expected = case.oracle(0)
    for plan in PLANS:
        assert error(case.verify(0, plan), expected) < 0.002, plan
    assert error(case.walk(0), expected) < 0.002


def test_overlapping_launches_of_verify_repeat_bit_for_bit(case):
    """The second kernel starts while the first still runs; a read too early would differ now and then."""
    from specpilot_sglang.kernels.gated_delta.bench import LAYERS

    expected = [case.both(layer) for layer in range(LAYERS)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [case.both(layer) for layer in range(LAYERS)]
    for _ in range(50):
        for out in found:
            out.zero_()
        graph.replay()
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_convolution_equals_torch_and_keeps_its_inputs(case):
    from specpilot_sglang.kernels.gated_delta import conv_ref

    x = case.x[1].view(case.batch, case.nodes, -1).float()
    expected, _ = conv_ref.causal_conv1d(x, case.weight, None, case.history[1].float(), case.trees.parents)
    found = case.mixed[1].view(expected.shape).float()
    assert torch.allclose(found, expected, atol=2e-2, rtol=2e-2)
    assert torch.equal(case.kept, case.x)


def test_commit_leaves_the_state_of_the_accepted_node(case):
    from specpilot_sglang.kernels.gated_delta import ref
    from specpilot_sglang.kernels.gated_delta.bench import LAYERS, VALUE_HEADS, error

    for layer in range(LAYERS):
        case.verify(layer)
    q, k, v = (x.double() for x in case.split(case.mixed[0]))
    gates = ref.gates(case.a[0].double(), case.b[0].double(), case.a_log[0].double(), case.dt_bias[0].double())
    rows = [x.view(case.batch, case.nodes, *x.shape[1:]) for x in (*ref.prepare_qk(q, k, VALUE_HEADS), v, *gates)]
    before = case.states.clone()
    _, states = ref.recurrent(*rows, before[0].double(), case.trees.parents)
    expected = states[torch.arange(case.batch, device="cuda"), case.trees.depths.argmax(1)]
    case.commit()
    found = case.states[0].clone()
    case.states.copy_(before)
    assert error(found, expected) < 1e-5
    assert error(before[0], expected) > 0.1


def test_builder_and_accept_equal_torch():
    from specpilot_sglang.kernels.tree_build import verify
    from specpilot_sglang.kernels.tree_build.bench import marginals
    from specpilot_sglang.kernels.tree_build.build import build
    from specpilot_sglang.kernels.tree_build.launch import build_linked
    from specpilot_sglang.tree.accept import walk

    torch.manual_seed(1)
    for batch, nodes in ((1, 8), (8, 32), (5, 64)):
        edges, roots = marginals(batch, 7, 4096, nodes - 1), torch.arange(batch, device="cuda")
        made, expected = build_linked(edges, roots, nodes), build(edges, roots, nodes)
        for name in ("tokens", "parents", "depths"):
            assert torch.equal(getattr(made.trees, name), getattr(expected, name)), (batch, nodes, name)
        chosen = expected.tokens.roll(-1, 1)
        lengths = torch.arange(batch, device="cuda")
        found, oracle = verify.accept(made.trees, chosen, lengths, 8), walk(expected, chosen, lengths, 8)
        assert torch.equal(found[0], oracle.index)
        assert torch.equal(found[2], oracle.lens)
