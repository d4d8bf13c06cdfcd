"""The Gated DeltaNet oracle against transformers' Qwen3-Next reference and against itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers.models.qwen3_next import modeling_qwen3_next as hf

from specpilot_sglang.kernels.gated_delta import conv_ref, ref

K_HEADS, V_HEADS, K_DIM, V_DIM = 2, 4, 16, 8


def inputs(tokens, batch=1, seed=0, dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.randn(*shape, generator=gen, dtype=torch.float64).to(dtype)

    q, k = rand(batch, tokens, K_HEADS, K_DIM), rand(batch, tokens, K_HEADS, K_DIM)
    v = rand(batch, tokens, V_HEADS, V_DIM)
    g, beta = ref.gates(rand(batch, tokens, V_HEADS), rand(batch, tokens, V_HEADS), rand(V_HEADS), rand(V_HEADS))
    state = rand(batch, V_HEADS, V_DIM, K_DIM)
    return q, k, v, g, beta, state


def hf_reference(function, q, k, v, g, beta, state):
    """Transformers' torch form in float32; its state is [key dim, value dim]."""
    repeat = V_HEADS // K_HEADS
    q, k = (x.repeat_interleave(repeat, 2) for x in (q, k))
    out, last = function(
        q, k, v, g, beta, initial_state=state.transpose(-1, -2), output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    return out, last.transpose(-1, -2)


@pytest.mark.parametrize("tokens", [1, 5, 64, 65, 200])
@pytest.mark.parametrize("form", ["recurrent", "chunked"])
def test_forms_match_transformers(tokens, form):
    q, k, v, g, beta, state = inputs(tokens, dtype=torch.float32)
    want_chunk = hf_reference(hf.torch_chunk_gated_delta_rule, q, k, v, g, beta, state)
    want_step = hf_reference(hf.torch_recurrent_gated_delta_rule, q, k, v, g, beta, state)
    pq, pk = ref.prepare_qk(q, k, V_HEADS)
    if form == "recurrent":
        out, states = ref.recurrent(pq, pk, v, g, beta, state)
        last = states[:, -1]
    else:
        out, last, _ = ref.chunked(pq[0], pk[0], v[0], g[0], beta[0], state[0])
        out, last = out[None], last[None]
    for want_out, want_last in (want_chunk, want_step):
        torch.testing.assert_close(out, want_out, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(last, want_last, atol=2e-5, rtol=1e-4)


def test_chunk_starts_are_the_recurrent_states_at_those_tokens():
    q, k, v, g, beta, state = inputs(150)
    q, k = ref.prepare_qk(q, k, V_HEADS)
    out, last, before = ref.chunked(q[0], k[0], v[0], g[0], beta[0], state[0], chunk=64)
    want_out, states = ref.recurrent(q, k, v, g, beta, state)
    torch.testing.assert_close(out, want_out[0], atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(last, states[0, -1], atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(before, torch.stack([state[0], states[0, 63], states[0, 127]]), atol=1e-11, rtol=1e-11)


def test_strong_decay_does_not_overflow_the_chunked_form():
    q, k, v, g, beta, state = inputs(64, dtype=torch.float32)
    q, k = ref.prepare_qk(q, k, V_HEADS)
    g = torch.full_like(g, -20.0)
    out, last, _ = ref.chunked(q[0], k[0], v[0], g[0], beta[0], state[0])
    want, states = ref.recurrent(q, k, v, g, beta, state)
    torch.testing.assert_close(out, want[0])
    torch.testing.assert_close(last, states[0, -1])


PARENTS = [-1, 0, 0, 1, 1, 2, 3]


def path_to(node):
    path = []
    while node >= 0:
        path.append(node)
        node = PARENTS[node]
    return path[::-1]


@pytest.mark.parametrize("node", range(len(PARENTS)))
def test_tree_node_equals_replay_of_its_path_exactly(node):
    q, k, v, g, beta, state = inputs(len(PARENTS), batch=2, dtype=torch.float32)
    q, k = ref.prepare_qk(q, k, V_HEADS)
    parents = torch.tensor(PARENTS).expand(2, -1)
    out, states = ref.recurrent(q, k, v, g, beta, state, parents)
    path = path_to(node)
    want, replayed = ref.recurrent(q[:, path], k[:, path], v[:, path], g[:, path], beta[:, path], state)
    assert torch.equal(out[:, node], want[:, -1])
    assert torch.equal(states[:, node], replayed[:, -1])


def test_parents_from_sglang_links():
    # children in order: 0 -> 1, 2; 1 -> 3, 4; 2 -> 5; 3 -> 6
    next_token = torch.tensor([[1, 3, 5, 6, -1, -1, -1]])
    next_sibling = torch.tensor([[-1, 2, -1, 4, -1, -1, -1]])
    assert ref.parents_from_links(next_token, next_sibling).tolist() == [PARENTS]


def test_convolution_matches_torch_and_carries_its_state():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 9, 6), torch.randn(6, 4), torch.randn(6)
    want = F.silu(F.conv1d(x.transpose(1, 2), weight[:, None], bias, padding=3, groups=6)[..., :9]).transpose(1, 2)
    out, states = conv_ref.causal_conv1d(x, weight, bias, torch.zeros(2, 6, 3))
    torch.testing.assert_close(out, want, atol=1e-6, rtol=1e-5)
    later, _ = conv_ref.causal_conv1d(x[:, 5:], weight, bias, states[:, 4])
    torch.testing.assert_close(later, out[:, 5:], atol=1e-6, rtol=1e-6)
    assert torch.equal(states[:, 4], x[:, 2:5].transpose(1, 2))


@pytest.mark.parametrize("node", range(len(PARENTS)))
def test_convolution_over_a_tree_equals_replay_of_each_path(node):
    torch.manual_seed(1)
    x, weight, state = torch.randn(2, len(PARENTS), 6), torch.randn(6, 4), torch.randn(2, 6, 3)
    out, states = conv_ref.causal_conv1d(x, weight, None, state, torch.tensor(PARENTS).expand(2, -1), silu=False)
    path = path_to(node)
    # Without SiLU: torch's vectorised exponential may differ in the last bit with an element's place in memory.
    want, replayed = conv_ref.causal_conv1d(x[:, path], weight, None, state, silu=False)
    assert torch.equal(out[:, node], want[:, -1])
    assert torch.equal(states[:, node], replayed[:, -1])
