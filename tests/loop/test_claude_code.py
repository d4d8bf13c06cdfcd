"""The real Claude Code command line and Agent SDK in the jail, against a model that plays two answers; no network."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec

import pytest
from test_agents import YAML, a_task

from specpilot_sglang.loop.agents.running import run_agent
from specpilot_sglang.loop.agents.settings import AgentSettings
from specpilot_sglang.loop.jail.limits import Limits
from specpilot_sglang.overlay import load_overlay

NOTE = '{"hypothesis": "said by the model"}'
pytestmark = [
    pytest.mark.skipif(find_spec("claude_agent_sdk") is None, reason="claude-agent-sdk is not installed"),
    pytest.mark.long,
]


def events(block, deltas, reason):
    """One answer of the messages API as server-sent events."""
    message = {"id": "m", "type": "message", "role": "assistant", "model": "played", "content": []}
    rows = [
        {"type": "message_start", "message": {**message, "usage": {"input_tokens": 100, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 20}},
        {"type": "message_stop"},
    ]
    return "".join(f"event: {row['type']}\ndata: {json.dumps(row)}\n\n" for row in rows).encode()


class _Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list = []  # noqa: RUF012
    place = ""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        _Model.seen.append((self.headers["x-api-key"], [t["name"] for t in body.get("tools", [])], json.dumps(body)))
        if len(body["messages"]) == 1:
            call = json.dumps({"file_path": _Model.place, "content": NOTE})
            block = {"type": "tool_use", "id": "toolu_1", "name": "Write", "input": {}}
            data = events(block, [{"type": "input_json_delta", "partial_json": call}], "tool_use")
        else:
            data = events({"type": "text", "text": ""}, [{"type": "text_delta", "text": "done"}], "end_turn")
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def play(tmp_path, jail, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = tmp_path / "base" / "toy"
    folder.mkdir(parents=True)
    (folder / "overlay.yaml").write_text(YAML)
    monkeypatch.setenv("TEST_MODEL_KEY", "the-real-key-4711")

    def call(preset, place):
        _Model.seen, _Model.place = [], place
        settings = AgentSettings(
            preset=preset,
            upstream=f"http://127.0.0.1:{server.server_port}",
            key_variable="TEST_MODEL_KEY",
            model="claude-sonnet-4-5",
            limits=Limits(wall_s=200.0),
        )
        return run_agent(settings, a_task(), load_overlay(str(folder)), tmp_path / "run")

    yield call
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("preset", ["claude", "claude-sdk"])
def test_it_reads_its_task_writes_a_note_and_never_holds_the_key(play, preset):
    outcome = play(preset, "/task/note.json")
    assert outcome.result.ok, outcome.result.log
    assert outcome.result.note == NOTE
    assert outcome.transcript.tools == {"Write": 1}
    assert (outcome.spent.calls, outcome.spent.tokens_in) == (2, 200)
    assert {key for key, _, _ in _Model.seen} == {"the-real-key-4711"}
    assert set(_Model.seen[0][1]) == {"Bash", "Edit", "Glob", "Grep", "Read", "Write"}
    assert "block-size" in _Model.seen[0][2]
    assert "the-real-key" not in outcome.result.log


@pytest.mark.parametrize("preset", ["claude", "claude-sdk"])
def test_its_hook_refuses_what_is_outside_the_folder(play, preset):
    outcome = play(preset, "/usr/note.json")
    assert outcome.result.note == ""
    assert "outside the working folder" in _Model.seen[-1][2]
