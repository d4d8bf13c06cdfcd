"""The platform's Gated DeltaNet kernels with SGLang's signatures: a verified block commits what decoding would have."""

from __future__ import annotations

import pytest
import torch

from specpilot_sglang.platform_cpu import gdn_ops, gdn_state

SLOTS, K_HEADS, V_HEADS, K_DIM, V_DIM, WIDTH, BLOCK = 7, 2, 4, 8, 6, 4, 5
CHANNELS = 2 * K_HEADS * K_DIM + V_HEADS * V_DIM
SLOT_OF = torch.tensor([4, -1, 2])  # the middle row is padding


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return {
        "conv": torch.randn(SLOTS, CHANNELS, WIDTH - 1),
        "ssm": torch.randn(SLOTS, V_HEADS, V_DIM, K_DIM),
        "weight": torch.randn(CHANNELS, WIDTH),
        "a_log": torch.randn(V_HEADS),
        "dt_bias": torch.randn(V_HEADS),
        "x": torch.randn(3, BLOCK, CHANNELS),
        "a": torch.randn(3, BLOCK, V_HEADS),
        "b": torch.randn(3, BLOCK, V_HEADS),
    }


def split(qkv):
    q, k, v = qkv.split([K_HEADS * K_DIM, K_HEADS * K_DIM, V_HEADS * V_DIM], dim=-1)
    return q.view(1, -1, K_HEADS, K_DIM), k.view(1, -1, K_HEADS, K_DIM), v.view(1, -1, V_HEADS, V_DIM)


def recurrent(layer, qkv, a, b, ssm, **options):
    q, k, v = split(qkv.reshape(-1, CHANNELS))
    return gdn_ops.recurrent_update(
        A_log=layer["a_log"],
        a=a.reshape(-1, V_HEADS),
        dt_bias=layer["dt_bias"],
        softplus_beta=1.0,
        softplus_threshold=20.0,
        q=q,
        k=k,
        v=v,
        b=b.reshape(-1, V_HEADS),
        initial_state_source=ssm,
        initial_state_indices=SLOT_OF,
        cu_seqlens=torch.arange(4, dtype=torch.int32) * (v.shape[1] // 3),
        use_qk_l2norm_in_kernel=True,
        **options,
    )


def decode(layer, tokens):
    """Sequential decoding of each row's tokens; returns outputs and the pools afterwards."""
    conv, ssm, outs = layer["conv"].clone(), layer["ssm"].clone(), []
    for t in tokens:
        rows = torch.arange(3)
        qkv = gdn_ops.conv1d_update(
            layer["x"][rows, t], conv, layer["weight"], None, "silu", conv_state_indices=SLOT_OF
        )
        outs.append(recurrent(layer, qkv, layer["a"][:, t], layer["b"][:, t], ssm)[0])
    return outs, conv, ssm


def verify(layer, **tree):
    conv, ssm = layer["conv"].clone(), layer["ssm"].clone()
    windows = torch.zeros(3, BLOCK, CHANNELS, WIDTH - 1)
    states = torch.zeros(3, BLOCK, V_HEADS, V_DIM, K_DIM)
    parents = torch.zeros(3, BLOCK, dtype=torch.int64) if tree else None
    qkv = gdn_ops.conv1d_update(
        layer["x"].transpose(1, 2),
        conv,
        layer["weight"],
        None,
        "silu",
        conv_state_indices=SLOT_OF,
        intermediate_conv_window=windows,
        intermediate_state_indices=torch.arange(3),
        retrieve_parent_token=parents,
        **tree,
    ).transpose(1, 2)
    out = recurrent(
        layer,
        qkv,
        layer["a"],
        layer["b"],
        ssm,
        disable_state_update=True,
        intermediate_states_buffer=states,
        intermediate_state_indices=torch.arange(3),
        retrieve_parent_token=parents,
    )
    assert torch.equal(conv, layer["conv"]), "verify must leave the live convolution states alone"
    assert torch.equal(ssm, layer["ssm"]), "verify must leave the live recurrent states alone"
    return out.view(3, BLOCK, V_HEADS, V_DIM), conv, ssm, windows, states


def commit(conv, ssm, windows, states, step):
    steps = torch.full((3,), step)
    gdn_state.scatter_accepted(ssm[None], states[None], SLOT_OF, steps)
    gdn_state.scatter_accepted(conv[None], windows[None], SLOT_OF, steps)


@pytest.mark.parametrize("accepted", range(1, BLOCK + 1))
def test_committed_states_equal_sequential_decoding(layer, accepted):
    want_out, want_conv, want_ssm = decode(layer, range(accepted))
    out, conv, ssm, windows, states = verify(layer)
    commit(conv, ssm, windows, states, accepted - 1)
    live = [0, 2]
    torch.testing.assert_close(out[live, accepted - 1], want_out[-1][live], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ssm, want_ssm, atol=1e-6, rtol=1e-5)
    assert torch.equal(conv, want_conv)


@pytest.mark.parametrize("node", range(BLOCK))
def test_tree_commit_equals_decoding_its_path(layer, node):
    links = {
        "retrieve_next_token": torch.tensor([[1, 3, -1, -1, -1]] * 3),
        "retrieve_next_sibling": torch.tensor([[-1, 2, -1, 4, -1]] * 3),
    }
    parents = [-1, 0, 0, 1, 1]
    path = []
    walk = node
    while walk >= 0:
        path.insert(0, walk)
        walk = parents[walk]
    _, want_conv, want_ssm = decode(layer, path)
    _, conv, ssm, windows, states = verify(layer, **links)
    commit(conv, ssm, windows, states, node)
    torch.testing.assert_close(ssm, want_ssm, atol=1e-6, rtol=1e-5)
    assert torch.equal(conv, want_conv)


def test_rejected_requests_and_padding_commit_nothing(layer):
    _, conv, ssm, windows, states = verify(layer)
    commit(conv, ssm, windows, states, -1)
    assert torch.equal(ssm, layer["ssm"])
    assert torch.equal(conv, layer["conv"])
    commit(conv, ssm, windows, states, 0)
    others = [0, 1, 3, 5, 6]
    assert torch.equal(ssm[others], layer["ssm"][others])
    assert torch.equal(conv[others], layer["conv"][others])


def test_prefill_in_two_chunks_equals_one_and_decoding(layer):
    x, a, b = layer["x"][0], layer["a"][0], layer["b"][0]

    def prefill(parts):
        conv, ssm, outs = layer["conv"].clone(), layer["ssm"].clone(), []
        for i, (start, end) in enumerate(parts):
            loc = torch.tensor([0, end - start], dtype=torch.int32)
            qkv = gdn_ops.conv1d_prefill(
                x[start:end].t(),
                layer["weight"],
                None,
                conv,
                loc,
                [end - start],
                SLOT_OF[:1],
                has_initial_state=torch.tensor([i > 0]),
            ).t()
            if i == 0:
                ssm[4] = 0
            g, beta = gdn_ops.gdn_gating(layer["a_log"], a[start:end], b[start:end], layer["dt_bias"])
            out, _, _ = gdn_ops.chunk_prefill(
                *split(qkv), g, beta, None, ssm, SLOT_OF[:1], loc, use_qk_l2norm_in_kernel=True
            )
            outs.append(out[0])
        return torch.cat(outs), conv, ssm

    whole, split_up = prefill([(0, BLOCK)]), prefill([(0, 2), (2, BLOCK)])
    for one, two in zip(whole, split_up, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)
    layer["conv"][4] = 0
    layer["ssm"][4] = 0
    outs, conv, ssm = decode(layer, range(BLOCK))
    torch.testing.assert_close(torch.stack([o[0] for o in outs]), whole[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ssm[4], whole[2][4], atol=1e-5, rtol=1e-5)
    assert torch.equal(conv[4], whole[1][4])


def test_tracking_copies_only_marked_rows(layer):
    conv, ssm = layer["conv"].clone(), layer["ssm"].clone()
    gdn_state.track_states(conv, ssm, SLOT_OF, torch.tensor([True, True, False]), torch.tensor([6, 5, 1]), 3)
    assert torch.equal(ssm[6], layer["ssm"][4])
    assert torch.equal(conv[6], layer["conv"][4])
    for untouched in (1, 5):
        assert torch.equal(ssm[untouched], layer["ssm"][untouched])
