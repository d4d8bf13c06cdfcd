"""Agents: the tuner in its jail, presets from command to patch, a recorded transcript without the network."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from pydantic import ValidationError

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.agents import presets
from specpilot_sglang.loop.agents.inside.tuner import propose
from specpilot_sglang.loop.agents.running import run_agent
from specpilot_sglang.loop.agents.settings import AgentSettings
from specpilot_sglang.loop.agents.task import make_task, prompt
from specpilot_sglang.loop.agents.transcript import read_transcript
from specpilot_sglang.loop.directions import Direction, Parameter
from specpilot_sglang.loop.gate import check_patch
from specpilot_sglang.loop.jail.limits import Limits
from specpilot_sglang.loop.jail.usage import Caps, Spent
from specpilot_sglang.overlay import load_overlay

KEY = "server_args.speculative_num_draft_tokens"
YAML = "name: toy\nserver_args:\n  speculative_num_draft_tokens: 2  # too few\n"
LIMITS = Limits(wall_s=120.0, cpu_s=60, memory_mib=2048, processes=64, disk_mib=16)


@pytest.fixture
def incumbent(tmp_path):
    folder = tmp_path / "base" / "toy"
    folder.mkdir(parents=True)
    (folder / "overlay.yaml").write_text(YAML)
    (folder / "kernels").mkdir()
    (folder / "kernels" / "k.cu").write_text("// old\n")
    return load_overlay(str(folder))


def a_task(history=(), predicted=None, choices=(2, 4, 8), seed=1):
    parameter = Parameter(key=KEY, choices=choices, predicted=predicted or {})
    direction = Direction(name="block-size", share=0.4, why="fit the block", parameters=(parameter,))
    return make_task("toy", direction, {KEY: 2}, cost=[], memory=[], history=history, budget={}, seed=seed)


@pytest.fixture
def tune(incumbent, tmp_path, jail):
    def call(task):
        outcome = run_agent(AgentSettings(limits=LIMITS), task, incumbent, tmp_path / "run")
        assert outcome.result.ok, outcome.result.log
        return outcome.result

    return call


def test_the_tuner_follows_the_cost_model_and_keeps_comments(tune, incumbent, tmp_path):
    result = tune(a_task(predicted={"2": 0.0, "4": 0.3, "8": 0.2}))
    report = check_patch(result.patch, incumbent, tmp_path / "out")
    assert report.ok, report.reasons
    text = (report.folder / "overlay.yaml").read_text()
    assert "speculative_num_draft_tokens: 4  # too few" in text
    assert json.loads(result.note)["predicted_gain_percent"] == pytest.approx(30)


def test_the_tuner_tries_nothing_twice_and_says_when_nothing_is_left():
    tried = [{"values": {KEY: 4}, "feedback": {"public_gain_percent": 3.0}}]
    assert propose(a_task(tried).to_json()) == {KEY: 8}
    assert propose(a_task([*tried, {"values": {KEY: 8}}]).to_json()) is None
    wide = {"choices": tuple(range(2, 30))}
    first = [propose(a_task(**wide, seed=seed).to_json()) for seed in range(6)]
    assert first == [propose(a_task(**wide, seed=seed).to_json()) for seed in range(6)], (
        "the same task, the same change"
    )
    assert len({row[KEY] for row in first}) > 2, "another seed, another change"


def test_the_tuner_leaves_out_what_the_cost_model_expects_to_lose_much():
    predicted = {"2": 0.0, "4": -0.1, "8": -0.45}
    assert propose(a_task(predicted=predicted).to_json()) == {KEY: 4}
    assert propose(a_task([{"values": {KEY: 4}}], predicted=predicted).to_json()) is None


def test_settings_that_contradict_themselves_are_refused():
    with pytest.raises(ValidationError, match="preset command"):
        AgentSettings(preset="command")
    with pytest.raises(ValidationError, match="preset command"):
        AgentSettings(command=("x",))


def test_an_absent_program_or_key_is_a_clear_error(monkeypatch, incumbent, tmp_path, jail):
    monkeypatch.setattr(presets.shutil, "which", lambda name: None)
    monkeypatch.setattr(presets, "_bundled", lambda: None)
    with pytest.raises(SpecPilotError, match="Claude Code command line is not installed"):
        presets.launch(AgentSettings(preset="claude"), a_task())
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    settings = AgentSettings(preset="claude", program=__file__, key_variable="NO_SUCH_KEY")
    with pytest.raises(SpecPilotError, match="no API key"):
        run_agent(settings, a_task(), incumbent, tmp_path / "run")


def test_claude_gets_a_profile_a_hook_and_no_key():
    settings = AgentSettings(preset="claude", program=__file__, model="m", tool_calls=7, caps=Caps(usd=2.0))
    plan = presets.launch(settings, a_task())
    text = " ".join(plan.command)
    for part in (
        "--permission-mode dontAsk",
        "--strict-mcp-config",
        "--max-budget-usd 2",
        "--model m",
        prompt(a_task()),
    ):
        assert part in text
    profile = json.loads(plan.files["settings.json"])
    assert "WebFetch" in profile["permissions"]["deny"]
    assert profile["hooks"]["PreToolUse"][0]["hooks"][0]["command"].endswith("/in/hook.py 7")
    assert plan.env["ANTHROPIC_API_KEY"] == "held-by-the-proxy"


@pytest.mark.parametrize(
    ("data", "calls", "code"),
    [
        ({"tool_input": {"file_path": "overlays/toy/overlay.yaml"}}, 3, 0),
        ({"tool_input": {"file_path": "/etc/passwd"}}, 3, 2),
        ({"tool_input": {"file_path": "/task/../etc/passwd"}}, 3, 2),
        ({"tool_input": {}}, 0, 2),
    ],
)
def test_the_hook_counts_and_confines(data, calls, code, monkeypatch, tmp_path, capsys):
    import io
    import sys

    from specpilot_sglang.loop.agents.inside import hook

    monkeypatch.setattr(hook, "_COUNT", tmp_path / "count")
    monkeypatch.setattr(sys, "argv", ["hook.py", str(calls)])
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(data)))
    assert hook.main() == code


class _Model(BaseHTTPRequestHandler):
    keys: list = []  # noqa: RUF012

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        _Model.keys.append(self.headers["x-api-key"])
        body = json.dumps({"type": "message", "usage": {"input_tokens": 100, "output_tokens": 20}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def model():
    _Model.keys = []
    server = HTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_recorded_transcript_drives_the_whole_path(incumbent, tmp_path, jail, model, monkeypatch):
    """A program in Claude Code's place that plays a recording back: model calls, edits, stream of JSON lines."""
    from specpilot_sglang.loop.jail.bubblewrap import python

    recording = Path(__file__).with_name("recorded") / "claude.jsonl"
    program = tmp_path / "claude"
    player = Path(__file__).with_name("recorded") / "player.py"
    source = player.read_text().replace('"__RECORDING__"', repr(recording.read_text()))
    program.write_text(f"#!{python()}\n{source}")
    program.chmod(0o755)
    monkeypatch.setenv("TEST_MODEL_KEY", "the-real-key-4711")
    settings = AgentSettings(
        preset="claude", program=str(program), upstream=model, key_variable="TEST_MODEL_KEY", limits=LIMITS
    )
    outcome = run_agent(settings, a_task(), incumbent, tmp_path / "run")
    assert outcome.result.ok, outcome.result.log
    assert outcome.spent == Spent(2, 200, 40)
    assert _Model.keys == ["the-real-key-4711"] * 2
    assert outcome.transcript.tools == {"Read": 1, "Edit": 1, "Write": 1}
    assert outcome.transcript.usd == 0.0123
    report = check_patch(outcome.result.patch, incumbent, tmp_path / "out")
    assert report.touched == ("kernels/toy/k.cu", "overlays/toy/overlay.yaml")
    assert report.ok, report.reasons
    assert load_overlay(str(report.folder)).overlay.server_args.speculative_num_draft_tokens == 8
    assert json.loads(outcome.result.note)["hypothesis"] == "the drafter was trained with blocks of 8"
    assert "the-real-key-4711" not in outcome.result.log + outcome.result.patch


def test_other_output_is_no_transcript():
    assert read_transcript('hello\n{"type": "assistant", "message": 3}\n[1]\n{').calls == 0
    ended = read_transcript('{"type": "result", "is_error": true, "subtype": "error_max_turns"}')
    assert ended.error == "error_max_turns"
