"""What speculation takes of a hybrid target's memory is what the plan for it says, and a small part of stock's."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from specpilot_sglang.tree.buffers import KeptInputs, kept_bytes
from specpilot_sglang.tree.gated_delta import plan_state_memory, shrink_state_pool
from specpilot_sglang.tree.widths import WidthPolicy

#: Gated DeltaNet layers of the Qwen3.8-27B shape.
SHAPE = {"linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_num_value_heads": 48}
CONFIG = SimpleNamespace(**SHAPE, linear_value_head_dim=128)
LAYERS, STATE = 48, 48 * 128 * 128 * 4  # bytes of a layer's FP32 state, which stock keeps for each node


def layer(number):
    return SimpleNamespace(layer_id=number, q_dim=2048, k_dim=2048, v_dim=6144, num_v_heads=48)


@pytest.mark.parametrize("rows", [1, 40])
def test_kept_inputs_are_as_large_as_planned_and_far_below_a_state_a_node(rows):
    kept = KeptInputs([layer(i) for i in range(LAYERS)], rows, torch.bfloat16, "meta")
    assert kept.nbytes == kept_bytes(CONFIG, rows, LAYERS, 2)
    assert 70 * kept.nbytes < rows * LAYERS * STATE


def test_state_pools_keep_room_for_one_node_of_one_request_only():
    made = []

    def pool(self, **kwargs):
        made.append(kwargs)

    for kda, draft_tokens in ((False, 32), (True, 32), (False, None)):
        asked = {"cache_params": SimpleNamespace(is_kda=kda), "speculative_num_draft_tokens": draft_tokens}
        shrink_state_pool(pool, None, **asked, spec_state_size=49)
    assert [(m["speculative_num_draft_tokens"], m["spec_state_size"]) for m in made] == [(1, 1), (32, 49), (None, 49)]


def test_memory_for_kept_inputs_is_taken_from_what_keys_and_values_get(monkeypatch):
    from sglang.srt import runtime_context

    seen = []

    @contextlib.contextmanager
    def override(**changed):
        seen.append(changed)
        yield

    monkeypatch.setattr(runtime_context, "get_spec", lambda: SimpleNamespace(override=override))
    monkeypatch.setattr(runtime_context, "get_schedule", lambda: SimpleNamespace(max_running_requests=8))
    per_request = LAYERS * (STATE + 3 * 10240 * 2)
    params = SimpleNamespace(layers=list(range(LAYERS)), mamba_cache_per_req=per_request)
    configurator = SimpleNamespace(mambaish_config=SimpleNamespace(**vars(CONFIG), mamba2_cache_params=params))
    policy = WidthPolicy.of(32, None, cpu=False)
    left = plan_state_memory(policy, lambda c, rest: rest, configurator, 100.0)
    assert seen == [{"speculative_num_draft_tokens": 0}], "stock reserves a state a node, too"
    assert policy.most_rows(8) == 64
    taken = kept_bytes(CONFIG, 64, LAYERS, 2) + 2 * per_request
    assert left == pytest.approx(100 - taken / 2**30)
    # Stock's chain keeps 8 states for each of 8 requests, and one set more.
    assert 10 * taken < 9 * 8 * per_request
