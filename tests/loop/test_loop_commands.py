"""`specpilot loop` and `specpilot overlay new` from the outside."""

from __future__ import annotations

import json

import pytest
import yaml
from loop_fakes import context_of

from specpilot_sglang.cli import loop as loop_cli
from specpilot_sglang.loop.agents import presets
from specpilot_sglang.loop.controller import pins
from specpilot_sglang.loop.controller.loop import run_loop
from specpilot_sglang.loop.controller.settings import LoopSettings
from specpilot_sglang.overlay import load_overlay


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A loop that ran on fakes."""
    patch = pytest.MonkeyPatch()
    patch.setattr(pins.judge_pins, "take", lambda root=None: {})
    root = tmp_path_factory.mktemp("loop")
    context = context_of(root, candidates=6)
    run_loop(context)
    context.journal.close()
    patch.undo()
    return root / "state"


def test_a_dry_run_prints_command_mounts_environment_and_runs_nothing(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "find_program", lambda settings: tmp_path / "claude")
    result = cli("loop", "run", "--agent", "claude", "--dry-run", "--state", tmp_path / "s")
    assert result.code == 0
    for part in (
        "/jail/claude -p 'You improve",
        f"/jail/claude <- {tmp_path / 'claude'} (read-only)",
        "ANTHROPIC_API_KEY=held-by-the-proxy",
        "none but https://api.anthropic.com through the proxy",
        "--clearenv",
        "docker run --rm --init --network none",
    ):
        assert part in result.out
    assert not (tmp_path / "s").exists()


def test_an_absent_command_line_is_a_clear_error(cli, monkeypatch, tmp_path):
    monkeypatch.setattr(presets.shutil, "which", lambda name: None)
    monkeypatch.setattr(presets, "_bundled", lambda: None)
    result = cli("loop", "run", "--agent", "claude", "--dry-run", "--state", tmp_path)
    assert result.code == 2
    assert "the Claude Code command line is not installed" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--agent", "nobody"), "no agent is called 'nobody'"),
        (("--agent", "command"), "it needs a command"),
        (("--memory", "maybe"), "neither on nor off"),
        (("--overlay", "no-such-overlay"), "no overlay is called"),
    ],
)
def test_bad_arguments_are_named(cli, tmp_path, arguments, message):
    result = cli("loop", "run", "--dry-run", "--state", tmp_path, *arguments)
    assert (result.code, message in result.err) == (2, True), result.err


def test_without_its_packages_only_the_loop_is_missing(cli, monkeypatch):
    monkeypatch.setattr(loop_cli, "find_spec", lambda name: None)
    result = cli("loop", "status")
    assert result.code == 2
    assert "pip install 'specpilot-sglang[loop]'" in result.err
    assert cli("overlay", "list").code == 0


def test_status_counts_and_is_quick(cli, finished):
    row = json.loads(cli("loop", "status", "--state", finished, "--json").out)
    assert row["jobs"]["propose"] == {"done": 6}
    assert row["finished"] == "6 candidates were proposed"
    assert row["query_s"] < 0.2
    assert "no loop here" in cli("loop", "status", "--state", finished / "nowhere").err


def test_the_report_shows_the_tree_gains_and_what_was_learnt(cli, finished, tmp_path):
    assert cli("loop", "report", "--state", finished, "--out", tmp_path).code == 0
    html, row = (tmp_path / "report.html").read_text(), json.loads((tmp_path / "report.json").read_text())
    assert row["check"] == []
    assert [len(node["candidates"]) for node in row["tree"]] == [2, 2, 2, 0]
    accepted = [r for r in row["candidates"] if r["status"] == "accepted"]
    assert all(r["lower"] < r["confirmed"] for r in accepted)
    for part in ("Generation 3", "data:image/svg+xml", "2 -&gt; 3", "gate_refused", "What was learnt"):
        assert part in html
    assert "http://" not in html.replace("http://www.w3.org", "").replace("http://127.0.0.1", "")


def test_rollback_and_memory(cli, finished):
    assert "generation 1 is the incumbent" in cli("loop", "rollback", "--state", finished, "--to", 1).out
    assert load_overlay(str(finished / "overlays" / "toy")).overlay.server_args.speculative_num_draft_tokens == 3
    assert "block-size" in cli("loop", "memory", "--state", finished).out
    assert json.loads(cli("loop", "memory", "drafts", "--state", finished, "--json").out)


def test_the_schema_fits_the_settings(cli):
    schema = json.loads(cli("loop", "schema").out)
    assert set(schema["properties"]) == set(LoopSettings.model_fields)


def test_a_new_overlay_calls_itself_by_its_name_and_keeps_comments(cli, tmp_path):
    assert cli("overlay", "new", "mine", "--folder", tmp_path).code == 0
    text = (tmp_path / "mine" / "overlay.yaml").read_text()
    assert yaml.safe_load(text)["name"] == "mine"
    assert "# Which deployments it is for" in text
    assert not (tmp_path / "mine" / "README.md").exists()
    assert "is there already" in cli("overlay", "new", "mine", "--folder", tmp_path).err
    assert cli("overlay", "new", "auto", "--folder", tmp_path).code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
    assert cli("overlay", "new", "b", "--folder", tmp_path, "--from", "smollm2-135m-dflash-cpu").code == 0
