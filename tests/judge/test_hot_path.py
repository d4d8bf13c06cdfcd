"""Counters: what every load must reach proves that a mechanism ran; what depends on load or machine proves nothing."""

from __future__ import annotations

from typing import Any

import pytest

from specpilot_sglang.eval.load.results import LoadResult, Sample
from specpilot_sglang.loop.judge.gates_path import counted

IDLE = {"tree_graph_replays": 0, "tree_steps_of_16_rows": 0}
PROOFS = ["speculative_steps", "tree_steps"]


def _load(before: dict[str, int], after: dict[str, int], **said: Any) -> LoadResult:
    sample = Sample("gsm8k/1", "gsm8k", 5, 21, "text", 0.1, (0.1,) * 20, 2.0)
    attested = [{"ranks": [{"rank": 0, "hits": hits, **said}]} for hits in (before, after)]
    return LoadResult((sample,), 2.0, 1, 8, 2.5, {}, {}, attested[0], attested[1])


def _hits(steps: int, tree: int) -> dict[str, int]:
    return {"speculative_steps": steps, "tree_steps": tree, **IDLE}


def test_a_width_or_graph_that_this_load_did_not_need_is_no_mechanism_that_never_ran():
    assert counted(_load(_hits(2, 1), _hits(10, 9), proofs=PROOFS)) == []


@pytest.mark.parametrize(("after", "idle"), [(_hits(10, 1), "tree_steps"), (_hits(2, 9), "speculative_steps")])
def test_a_proof_that_did_not_grow_never_ran(after, idle):
    assert counted(_load(_hits(2, 1), after, proofs=PROOFS)) == [f"rank 0: {idle} did not grow: it never ran"]


def test_a_proof_that_is_not_counted_at_all_never_ran():
    found = counted(_load({}, {"speculative_steps": 8}, proofs=PROOFS))
    assert found == ["rank 0: tree_steps did not grow: it never ran"]


def test_steps_must_grow_whatever_a_rank_says_and_everything_must_where_it_says_nothing():
    assert counted(_load(_hits(2, 1), _hits(2, 9), proofs=[])) == [
        "rank 0: speculative_steps did not grow: it never ran"
    ]
    assert len(counted(_load(_hits(2, 1), _hits(10, 9)))) == len(IDLE)
    assert counted(_load({}, {}, proofs=[])) == ["rank 0 counts nothing"]
