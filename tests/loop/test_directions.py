"""Directions: from losses and predictions to who is sent where, and when a direction is left."""

from __future__ import annotations

import pytest

from specpilot_sglang.loop.agents.inside.tuner import edit, tied
from specpilot_sglang.loop.cost.table import CostTable, Rates, StepTime, Work
from specpilot_sglang.loop.directions import Direction, Record, choose
from specpilot_sglang.loop.directions.derive import directions
from specpilot_sglang.loop.directions.schedule import PATIENCE, dead
from specpilot_sglang.loop.directions.space import BLOCK, parameters, value_of
from specpilot_sglang.overlay import Overlay, load_overlay

OVERLAY = Overlay.model_validate(
    {"name": "toy", "server_args": {"speculative_num_draft_tokens": 2}, "patches": [{"file": "a.py", "function": "f"}]}
)


@pytest.fixture
def table():
    """Steps that hardly grow with the width, and drafts that are mostly accepted: a larger block must pay."""
    spec = tuple(StepTime(1, n, 100, 0.010 + 0.0002 * n, 0.001, 0.008 + 0.0002 * n) for n in (2, 4, 8))
    return CostTable(
        name="toy",
        block=8,
        ar=(StepTime(1, 1, 100, 0.009, None, 0.008),),
        spec=spec,
        accept={"gsm8k": {8: (10, 10, 10, 20, 20, 20, 20, 40)}},
        work=Work(1e9, 1e8, 1e9, 1e8),
        rates=Rates(2e11, 1e13),
    )


def test_the_cost_model_predicts_what_a_larger_block_brings(table):
    (block,) = parameters(OVERLAY, block=8, gpu=False, table=table)["block-size"]
    assert block.key == BLOCK
    assert block.predicted["2"] == 0.0
    assert 0 < block.predicted["4"] < block.predicted["8"]


def test_the_largest_gap_comes_first_and_names_its_terms(table):
    found = directions(parameters(OVERLAY, block=8, gpu=False, table=table), table, code=True)
    assert found[0].name == "block-size"
    assert found[0].source == "cost"
    assert "t_verify" in found[0].why
    assert [d.share for d in found] == sorted((d.share for d in found), reverse=True)
    assert {"verify-kernel", "patches"} <= {d.name for d in found}
    plain = directions(parameters(OVERLAY, block=8, gpu=False, table=None), None, code=False)
    assert {d.share for d in plain} == {0.2}
    assert "verify-kernel" not in {d.name for d in plain}, "no code, no direction without settings"


@pytest.mark.parametrize(
    "text",
    [
        "server_args: {speculative_num_draft_tokens: 8}",
        "tree: {kind: chain}",
        "tree: {kind: best-first, budget: 16}",
        "tree: {kind: best-first, budget: 32, max_depth: 6}",
    ],
)
@pytest.mark.parametrize("gpu", [False, True])
def test_no_choice_makes_an_overlay_that_contradicts_itself(text, gpu, tmp_path):
    path = tmp_path / "toy" / "overlay.yaml"
    path.parent.mkdir()
    made = set()
    path.write_text(f"name: toy\n{text}\n")
    overlay = load_overlay(str(path)).overlay
    for rows in parameters(overlay, block=8, gpu=gpu, table=None).values():
        for row in rows:
            for choice in row.choices:
                path.write_text(f"name: toy\n{text}\n")
                task = {"direction": {"parameters": [row.model_dump(mode="json")]}}
                edit(path, {**tied(task, {row.key: choice}), row.key: choice})
                changed = load_overlay(str(path)).overlay
                assert value_of(changed, row.key) == choice
                made.add((changed.tree.kind, changed.tree.budget))
    assert {("chain", None), *(("best-first", n) for n in (8, 16, 24, 32))} <= made


def test_settings_that_this_version_or_machine_lacks_are_no_directions():
    names = set(parameters(OVERLAY, block=8, gpu=False, table=None))
    assert "weights" not in names
    assert "weights" in parameters(OVERLAY, block=8, gpu=True, table=None)
    bare = Overlay.model_validate({"name": "bare"})
    assert "patches" not in parameters(bare, block=8, gpu=False, table=None)


def test_a_patch_is_followed_by_what_it_is_not_by_its_place():
    two = Overlay.model_validate(
        {"name": "t", "patches": [{"file": "a.py", "function": "f"}, {"file": "b.py", "function": "g"}]}
    )
    last = Overlay.model_validate({"name": "t", "patches": [{"file": "b.py", "function": "g"}]})
    assert [value_of(last, f"patches.{n}", two) for n in (0, 1)] == [False, True]


def test_expected_gain_over_cost_decides_and_dead_directions_are_left():
    rows = [Direction(name=n, share=s, why="") for n, s in (("big", 0.5), ("small", 0.2), ("dry", 0.9))]
    assert [d.name for d in choose(rows, {"dry": Record(dry=True)}, 3)] == ["big", "small"]
    failing = {"big": Record(tries=5, since=5, seconds=50), "small": Record(tries=1, accepted=1, seconds=10)}
    assert [d.name for d in choose(rows[:2], failing, 1)] == ["small"]
    dear = {"big": Record(tries=1, accepted=1, seconds=1000), "small": Record(tries=1, accepted=1, seconds=1)}
    assert [d.name for d in choose(rows[:2], dear, 1)] == ["small"]
    assert dead(Record(tries=PATIENCE, since=PATIENCE))
    assert not dead(Record(tries=PATIENCE, since=PATIENCE - 1))
