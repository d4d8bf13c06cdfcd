"""A night killed with SIGKILL at any stage resumes and measures no finished block twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
from pathlib import Path

import pytest
from nightly_fakes import Fake, Quiet, config

from specpilot_sglang.eval.nightly import block, history, night, report

BLOCKS = 6
#: What dies (just before the call of that name), and after how many calls.
STAGES = {
    "writing": (block, "write_whole"),  # the block's file
    "counting": (history.History, "add_block"),  # the file is there, the row is not
    "reporting": (report, "write_whole"),
    "finishing": (history.History, "finish"),
}


@pytest.fixture(autouse=True)
def same_code(monkeypatch):
    """Others may commit while the test runs, and a changed commit is another run."""
    monkeypatch.setattr(night, "code_name", lambda: "abc")
    monkeypatch.setattr(night.provenance, "collect", lambda *args, **facts: facts)  # it starts programs


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def doomed(folder: Path, stage: str, count: int) -> None:
    """In a process of its own: a night that dies at a stage."""
    left = [count]

    def tick(*args: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            die()

    runner = Fake()
    if stage == "measuring":  # in the middle of a block, its folder is there
        runner.before = tick
    else:
        owner, name = STAGES[stage]
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: (tick(), original(*args, **kwargs))[1])
    run(folder, runner)


def run(folder: Path, runner: Fake) -> night.Result:
    place = night.Place(folder / "history.sqlite", folder / "out")
    return night.run(config(), place, Quiet(), runner=runner)


#: Stage, which call of it dies, blocks that were finished then.
DEATHS = [
    *[("measuring", n, n - 1) for n in (1, 4)],
    ("writing", 3, 2),
    *[("counting", n, n - 1) for n in (2, 6)],
    *[("reporting", n, BLOCKS) for n in (1, 5)],
    ("finishing", 1, BLOCKS),
]


@pytest.mark.parametrize(("stage", "count", "finished"), DEATHS)
def test_killed_at_any_stage_it_loses_no_finished_block(tmp_path, stage, count, finished):
    child = multiprocessing.get_context("fork").Process(target=doomed, args=(tmp_path, stage, count))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    again = Fake()
    result = run(tmp_path, again)
    assert len(again.seen) == BLOCKS - finished
    assert result.document["night"]["resumed"]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["night"]["blocks"] == BLOCKS
    with sqlite3.connect(tmp_path / "history.sqlite") as db:
        assert db.execute("SELECT state FROM runs").fetchall() == [("done",)]
        assert db.execute("SELECT count(*) FROM blocks WHERE state = 'done'").fetchone() == (BLOCKS,)
        assert db.execute("SELECT count(DISTINCT value) FROM figures").fetchone()[0] > 5


def test_a_finished_night_is_not_resumed(tmp_path):
    for _ in range(2):
        runner = Fake()
        assert not run(tmp_path, runner).document["night"]["resumed"]
        assert len(runner.seen) == BLOCKS
