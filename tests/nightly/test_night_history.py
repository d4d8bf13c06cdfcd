"""The history file: damage is kept aside, other files are left alone, resuming asks for the same thing."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import pytest
from nightly_fakes import Fake, Quiet, config

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.nightly import night
from specpilot_sglang.eval.nightly.history import BlockRow, History
from specpilot_sglang.eval.nightly.plan import BlockKey
from specpilot_sglang.eval.nightly.run import locked


@pytest.fixture(autouse=True)
def same_code(monkeypatch):
    monkeypatch.setattr(night, "code_name", lambda: "abc")
    monkeypatch.setattr(night.provenance, "collect", lambda *args, **facts: facts)  # it starts programs


def begin(history, **changes):
    asked = {"name": "n", "config": {}, "digest": "d", "code": "c", "host": "h", "within_h": 1.0, "fresh": False}
    return history.begin(**{**asked, **changes})


def filled(path) -> bytes:
    with History(path) as history:
        for n in range(40):
            row = begin(history, fresh=True)
            history.finish(row.id, {"state": "ok"}, {"s": {f"metric{i}": float(n) for i in range(40)}})
    return path.read_bytes()


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def overwritten(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + os.urandom(8192) + data[middle + 8192 :]


def one_letter(data: bytes) -> bytes:
    """Table and index disagree then: only SQLite's integrity check sees it, every statement still works."""
    place = data.rfind(b"metric7")
    return data[:place] + b"matric7" + data[place + 7 :]


@pytest.mark.parametrize(
    "damage",
    [one_letter, cut, overwritten, lambda data: b"not a database at all" * 400, lambda data: b"\0" * len(data)],
)
def test_a_damaged_history_is_reported_and_kept_and_a_new_one_begun(tmp_path, damage):
    path = tmp_path / "history.sqlite"
    broken = damage(filled(path))
    path.write_bytes(broken)
    with History(path) as history:
        (notice,) = history.notices
        assert "damaged" in notice
        assert history.runs() == []
        begin(history)
    (kept,) = tmp_path.glob("history.sqlite.damaged-*[0-9]")
    assert str(kept) in notice
    assert kept.read_bytes() == broken
    with History(path) as history:
        assert history.notices == []
        assert len(history.runs()) == 1


def test_two_damaged_histories_in_one_second_are_both_kept(tmp_path):
    path = tmp_path / "history.sqlite"
    for n in range(3):
        path.write_bytes(b"nonsense %d" % n * 500)
        History(path).close()
    kept = sorted(tmp_path.glob("history.sqlite.damaged-*"))
    assert sorted(p.read_bytes()[:10] for p in kept) == [b"nonsense 0", b"nonsense 1", b"nonsense 2"]


def test_the_night_shows_that_its_history_was_damaged(tmp_path):
    (tmp_path / "history.sqlite").write_bytes(b"junk" * 1000)
    result = night.run(config(), night.Place(tmp_path / "history.sqlite", tmp_path / "out"), Quiet(), runner=Fake())
    assert "damaged" in result.document["night"]["notices"][0]
    assert "damaged" in result.paths["html"].read_text()


def test_another_programs_database_is_left_alone(tmp_path):
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE mine (a)")
    before = path.read_bytes()
    with pytest.raises(SpecPilotError, match="no nightly history"):
        History(path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused_untouched(tmp_path):
    path = tmp_path / "history.sqlite"
    History(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 7")
    with pytest.raises(SpecPilotError, match="schema 7"):
        History(path)
    assert list(tmp_path.glob("*damaged*")) == []


def test_a_place_that_cannot_be_written_is_an_error_with_its_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecPilotError, match=r"history\.sqlite"):
        History(tmp_path / "file" / "history.sqlite")


def test_commits_are_durable(tmp_path):
    with History(tmp_path / "history.sqlite") as history:
        assert history._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert history._db.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL


@pytest.mark.parametrize("change", [{"digest": "e"}, {"code": "d"}, {"host": "i"}, {"fresh": True}, {"within_h": -1.0}])
def test_an_unfinished_run_of_something_else_is_given_up(tmp_path, change):
    with History(tmp_path / "history.sqlite") as history:
        first = begin(history)
        assert begin(history).id == first.id
        second = begin(history, **change)
        assert not second.resumed
        assert [r["state"] for r in history.runs()] == ["given up", "running"]


def test_figures_of_unfinished_runs_are_no_history(tmp_path):
    with History(tmp_path / "history.sqlite") as history:
        done = begin(history)
        history.finish(done.id, {}, {"series": {"speed": 2.0}})
        begin(history)
        history.add_block(done.id, BlockRow(BlockKey("d", "ar", 0), 1, "failed", "", "", "why"))
        assert [p.value for p in history.points("series")["speed"]] == [2.0]
        assert history.points("another") == {}


def test_a_block_whose_file_changed_is_measured_again(tmp_path):
    place = night.Place(tmp_path / "history.sqlite", tmp_path / "out")
    dying = Fake(before=lambda key: (_ for _ in ()).throw(KeyboardInterrupt) if key.arm == "specpilot" else None)
    with pytest.raises(KeyboardInterrupt):
        night.run(config(), place, Quiet(), runner=dying)
    (tmp_path / "out/runs/00001/small-stock-0-1/block.json").write_text("{}")
    again = Fake()
    result = night.run(config(), place, Quiet(), runner=again)
    assert BlockKey("small", "stock", 0) in again.seen
    assert BlockKey("small", "ar", 0) not in again.seen
    assert any("has changed" in n for n in result.document["night"]["notices"])


def test_a_second_night_on_the_same_history_is_refused(tmp_path):
    place = night.Place(tmp_path / "history.sqlite", tmp_path / "out")
    with locked(place.history), pytest.raises(SpecPilotError, match="another nightly run"):
        night.run(config(), place, Quiet(), runner=Fake())
