"""A step over trees launches little more than a chain's, never waits for the device, and compiles nothing late."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from step_cost import FakeTensorMode, one_step, pretend, stub_tier

#: A chain's greedy step: block, embedding, two copies of draft tokens, page table, argmax, acceptance. A tree has one
#: launch each for what the verify pass reads, for the ancestors' page table, for keys and values that move, and for the
#: drafter's hidden states, and none for draft tokens.
CHAIN = 7
TREE = CHAIN + 2


@pytest.mark.parametrize(("requests", "width", "simulated"), [(1, 32, 0), (3, 16, 0), (16, 8, 0), (3, 16, 4)])
def test_a_step_launches_no_more_than_two_operations_beyond_a_chains(monkeypatch, requests, width, simulated):
    found = one_step(monkeypatch, requests, width, simulated)
    assert found.counts["launches"] <= TREE, found.launched
    assert found.counts["views"] <= 24, found.counts


@pytest.mark.parametrize(("width", "simulated"), [(8, 0), (16, 3), (32, 0)])
def test_what_the_start_has_compiled_serves_batches_of_every_size(monkeypatch, width, simulated):
    from specpilot_sglang.tree.warm import _warm

    with monkeypatch.context() as patch:
        warmed = pretend(patch)
        with FakeTensorMode():
            tier, worker = stub_tier(4, width, 8)
            worker.simulated_length = simulated
            with warmed:
                _warm(worker, tier)
    for requests in (1, 2, 3, 16, 31, 64):
        with monkeypatch.context() as patch:
            needed = one_step(patch, requests, width, simulated).compiled
        assert len(needed) == 5
        assert needed <= warmed.compiled, [key[0] for key in needed - warmed.compiled]


def test_committing_launches_the_same_for_any_number_of_layers(monkeypatch):
    """Gate parameters of all layers are gathered together: not a cast and a copy a layer."""
    from specpilot_sglang.tree import gated_delta
    from specpilot_sglang.tree.buffers import KeptInputs

    def launched(layers):
        counted = pretend(monkeypatch)
        heads, dim, rows = 4, 16, 3 * 8
        with FakeTensorMode():
            shape = {"q_dim": 32, "k_dim": 32, "v_dim": 64, "num_v_heads": heads, "num_q_heads": 2, "num_k_heads": 2}
            made = [
                SimpleNamespace(
                    **shape, head_q_dim=dim, head_k_dim=dim, head_v_dim=dim,
                    A_log=torch.nn.Parameter(torch.zeros(heads, device="cuda")),
                    dt_bias=torch.nn.Parameter(torch.zeros(heads, dtype=torch.bfloat16, device="cuda")),
                )
                for _ in range(layers)
            ]  # fmt: skip
            kept = KeptInputs(made, rows, torch.bfloat16, "cuda")
            cache = SimpleNamespace(
                temporal=torch.zeros(layers, 5, heads, dim, dim, device="cuda"),
                conv=[torch.zeros(layers, 5, 128, 3, device="cuda")],
            )
            backend = SimpleNamespace(
                req_to_token_pool=SimpleNamespace(get_speculative_mamba2_params_all_layers=lambda: cache),
                forward_metadata=SimpleNamespace(mamba_cache_indices=torch.zeros(4, dtype=torch.int32, device="cuda")),
            )
            runner = SimpleNamespace(attn_backend=SimpleNamespace(linear_attn_backend=backend))
            monkeypatch.setattr(gated_delta, "buffers_of", lambda runner: SimpleNamespace(kept=kept))
            accepted = SimpleNamespace(
                index=torch.zeros(3, 8, dtype=torch.int64, device="cuda"),
                lens=torch.ones(3, dtype=torch.int32, device="cuda"),
            )
            with counted:
                gated_delta.commit_layers(
                    SimpleNamespace(model_runner=runner), SimpleNamespace(mamba_track_indices=None), accepted, 8
                )
        return counted.launched

    assert launched(3) == launched(24)
    assert len(launched(24)) <= 6


class Sampling:
    """A sampled batch on a GPU, each request with top-k, top-p and min-p."""

    is_all_greedy, sampling_seed = False, None
    need_top_k_sampling = need_top_p_sampling = need_min_p_sampling = True

    def __init__(self, requests):
        self.top_ks = torch.ones(requests, dtype=torch.int32, device="cuda")
        self.temperatures, self.top_ps, self.min_ps = torch.ones(3, requests, device="cuda")

    def __len__(self):
        return len(self.top_ks)


def test_sampling_and_penalties_never_wait_for_the_device():
    """The value of a fake tensor cannot be read, and tensors of two devices do not mix."""
    from specpilot_sglang.kernels.tree_build.launch import LinkedTrees
    from specpilot_sglang.kernels.tree_build.tree import AcceptedPath
    from specpilot_sglang.tree.accept import target_tokens
    from specpilot_sglang.tree.penalties import Penalties

    asked = {"frequency_penalty": 0.1, "presence_penalty": 0.2, "repetition_penalty": 1.1, "min_new_tokens": 3}
    params = SimpleNamespace(**asked, stop_token_ids={4})
    req = SimpleNamespace(sampling_params=params, output_ids=[1, 2], eos_token_ids={3}, tokenizer=None)
    with FakeTensorMode(allow_non_fake_inputs=True):
        pools, logits = torch.ones(3, dtype=torch.int64, device="cuda"), torch.zeros(24, 500, device="cuda")
        chosen = target_tokens(logits, Sampling(3), SimpleNamespace(max_top_k=20), pools.new_zeros(24))
        assert chosen.is_cuda
        batch = SimpleNamespace(
            reqs=[req] * 3, req_pool_indices=pools, decoding_reqs=None, sampling_info=SimpleNamespace()
        )
        penalties = Penalties(10, 500, "cuda")
        penalties.start(batch)
        penalties.add_one(pools, pools.int())
        penalties.apply(logits, batch, LinkedTrees.empty(3, 8, "cuda").trees)
        wide, narrow = pools.new_zeros(3, 8), pools.new_zeros(3, 5)
        path = AcceptedPath(narrow, narrow, pools.int(), wide, pools, pools, narrow, narrow, narrow)
        penalties.add(pools, path)
