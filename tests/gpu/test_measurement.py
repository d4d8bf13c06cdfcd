"""The GPU measurement's arithmetic and parsing, on made-up servers and logs; no GPU needed."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.gpu.phases import memory_lines, milestones
from specpilot_sglang.eval.gpu.plan import load_plan
from specpilot_sglang.eval.gpu.shapes import QWEN3_8_27B, SHAPES, linear_shapes, write_shape
from specpilot_sglang.eval.gpu.speed import Stream, accept_length, run_load, steady_tok_s


def test_shape_of_27b_has_the_published_linear_layers_and_size():
    shapes = linear_shapes(QWEN3_8_27B)
    expected = {(14336, 5120), (5120, 6144), (16384, 5120), (96, 5120), (34816, 5120), (5120, 17408), (248320, 5120)}
    assert set(shapes.values()) == expected
    per_kind = {name: rows * columns for name, (rows, columns) in shapes.items()}
    gdn = per_kind["in_proj_qkvz"] + per_kind["in_proj_ba"] + per_kind["out_proj"]
    full = per_kind["qkv_proj"] + per_kind["o_proj"]
    mlp = per_kind["gate_up_proj"] + per_kind["down_proj"]
    total = 48 * gdn + 16 * full + 64 * mlp + 2 * per_kind["lm_head"]
    assert total == pytest.approx(26.896e9, rel=1e-3)  # transformers' own count of this config


def test_every_drafter_fits_its_target(tmp_path):
    from specpilot_sglang.plugin.checkpoints import read_checkpoint
    from specpilot_sglang.plugin.drafter import algorithm_of, check_drafter

    drafters = [name for name in SHAPES if name.rpartition("-")[0] in SHAPES and "-d" in name]
    assert len(drafters) == len(SHAPES) - 3
    for name in drafters:
        target, _, draft = name.rpartition("-")
        checkpoints = [read_checkpoint(str(write_shape(n, tmp_path / n)), "--model-path") for n in (target, name)]
        check_drafter(*checkpoints)
        assert algorithm_of(checkpoints[1]) == ("DSPARK" if draft == "dspark" else "DFLASH")


def test_steady_speed_counts_only_the_time_in_which_all_streams_decode():
    slow_start = Stream(events=[(2.0, 1), (12.0, 101)])
    early = Stream(events=[(0.0, 1), (7.0, 71)])
    # Between 2 s and 7 s both decode at 10 tokens a second.
    assert steady_tok_s([slow_start, early]) == pytest.approx(20.0)


def test_steady_speed_is_unknown_when_streams_never_overlap():
    assert steady_tok_s([Stream(events=[(0.0, 1), (1.0, 9)]), Stream(events=[(2.0, 1), (3.0, 9)])]) is None


def test_accept_length_weighs_requests_by_their_steps():
    streams = [Stream(meta={"completion_tokens": 40, "spec_verify_ct": 10}), Stream(meta={"completion_tokens": 10})]
    streams[1].meta["spec_verify_ct"] = 10
    assert accept_length(streams) == pytest.approx(2.5)
    assert accept_length([Stream(meta={"completion_tokens": 40})]) is None


class _FakeServer(BaseHTTPRequestHandler):
    deliver = 8

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        for n in (2, 5, self.deliver):
            chunk = {"output_ids": list(range(n)), "meta_info": {"completion_tokens": n, "spec_verify_ct": 4}}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *args):
        pass


@pytest.fixture
def fake_url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _FakeServer)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_load_reads_counts_from_the_stream(fake_url):
    speeds = run_load(fake_url, [[1, 2, 3]], concurrency=3, output_len=8, repeats=2, timeout_s=10)
    assert speeds["accept_length"] == pytest.approx(2.0)
    assert speeds["request_tok_s"] > 0


def test_load_refuses_a_request_that_ended_early(fake_url):
    with pytest.raises(ValueError, match=r"\[8\] of 16"):
        run_load(fake_url, [[1, 2, 3]], concurrency=1, output_len=16, repeats=1, timeout_s=10)


LOG = """\
[2026-11-30 01:00:00.000] server_args=ServerArgs(...)
[2026-11-30 01:00:10.250] Load weight begin. avail mem=138.00 GB
[2026-11-30 01:00:20.500] Load weight end. elapsed=10.25 s, avail mem=84.00 GB, mem usage=54.00 GB.
2026-11-30 01:00:30,000 - INFO - core.py:594 - flashinfer.jit: Building JIT module topk; this can take minutes
no stamp here
[2026-11-30 01:00:31.000] Mamba Cache is allocated. intermediate_ssm_state_cache size: 10.12GB
"""


def test_milestones_count_seconds_from_the_first_stamp():
    marks = [(mark.name, mark.seconds) for mark in milestones(LOG)]
    assert marks == [
        ("arguments parsed", 0.0),
        ("weights begin", 10.25),
        ("weights end", 20.5),
        ("JIT build", 30.0),
        ("recurrent state allocated", 31.0),
    ]


def test_memory_lines_keep_weights_and_snapshots():
    assert len(memory_lines(LOG)) == 3


def test_plan_error_names_file_and_key(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("vocab_size: 100\nservers:\n- {name: a, args: [], loads: [{concurrency: 0}]}\n")
    with pytest.raises(SpecPilotError, match=r"plan.yaml:servers.0.loads.0.concurrency"):
        load_plan(path, {})


def test_plan_asks_for_unset_variables(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("vocab_size: 100\nservers: [{name: a, args: ['${MODELS}/x']}]\n")
    with pytest.raises(SpecPilotError, match="MODELS"):
        load_plan(path, {})
    assert load_plan(path, {"MODELS": "/m"}).servers[0].args == ["/m/x"]
