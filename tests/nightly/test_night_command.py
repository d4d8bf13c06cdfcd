"""`specpilot nightly` from end to end with a runner that starts no server: exit codes, files, output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nightly_fakes import Fake

from specpilot_sglang.eval.nightly import night
from specpilot_sglang.eval.nightly.plan import Pair

TEXT = """\
version: 1
name: mine
deployments: [{name: small}]
load: {suites: {gsm8k: 2}}
rounds: 2
forcing: {suites: {gsm8k: 2}}
out: out
"""


@pytest.fixture
def nightly(cli, monkeypatch, tmp_path):
    monkeypatch.setattr(night, "check", lambda config, base: None)
    monkeypatch.setattr(night, "packaged_pair", lambda: Pair(Path("model"), Path("draft"), "made up"))
    (tmp_path / "nightly.yaml").write_text(TEXT)

    def call(runner, *args):
        monkeypatch.setattr(night, "_server_runner", lambda watch: runner)
        return cli("nightly", "--config", tmp_path / "nightly.yaml", *args)

    return call


def test_a_good_night_exits_0_with_three_reports(nightly, tmp_path):
    done = nightly(Fake())
    assert done.code == 0, done.err
    for suffix in ("html", "md", "json"):
        assert (tmp_path / "out" / f"report.{suffix}").read_bytes() == (
            tmp_path / "out" / "runs" / "00001" / f"report.{suffix}"
        ).read_bytes()
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["provenance"]["versions"]["sglang"]
    assert document["deployments"][0]["about"] == "made up"
    assert "made up" in (tmp_path / "out" / "report.md").read_text()


def test_a_regression_exits_1_and_says_why(nightly, tmp_path):
    done = nightly(Fake(mismatches={"specpilot": 40}))
    assert done.code == 1
    assert "regression token forcing" in done.out
    assert "# Nightly mine: regression" in (tmp_path / "out" / "report.md").read_text()


def test_a_server_that_does_not_start_exits_2_and_the_next_call_resumes(nightly):
    done = nightly(Fake(failing={"stock": 2}))
    assert done.code == 2
    assert "exit code 1" in done.err.splitlines()[-1]
    again = Fake()
    assert nightly(again).code == 0
    assert len(again.seen) == 5


def test_fresh_begins_anew(nightly):
    nightly(Fake(failing={"stock": 2}))
    again = Fake()
    assert nightly(again, "--fresh").code == 0
    assert len(again.seen) == 6


def test_json_on_stdout_is_the_report(nightly):
    done = nightly(Fake(), "--json")
    assert json.loads(done.out)["state"] == "ok"


def test_raw_files_of_old_runs_are_deleted_and_their_figures_kept(nightly, tmp_path):
    for _ in range(4):
        nightly(Fake(), "--keep", "2")
    assert sorted(p.name for p in (tmp_path / "out" / "runs").iterdir()) == ["00003", "00004"]
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {len(s["points"]) for s in document["deployments"][0]["history"]} == {4}


def test_the_host_lock_is_held_while_a_block_is_measured(nightly, tmp_path):
    import fcntl

    def must_be_locked(key):
        with (tmp_path / "lock").open("a") as handle, pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    assert nightly(Fake(before=must_be_locked), "--host-lock", tmp_path / "lock").code == 0
