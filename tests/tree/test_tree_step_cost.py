"""A step over trees launches little more than a chain's, never waits for the device, and compiles nothing late."""

from __future__ import annotations

import pytest
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
