"""Measurement in alternation: every round on every server, order reversed, answers compared, failures kept apart."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from specpilot_sglang.eval.gpu import turns
from specpilot_sglang.eval.gpu.plan import LoadPlan

PROMPTS = [[i, i + 1] for i in range(32)]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        length, first = body["sampling_params"]["max_new_tokens"], body["input_ids"][0]
        with self.server.lock:
            self.server.log.append(self.server.server_port)
            self.server.busy += 1
        ids = [first + (self.server.drift if self.server.busy > 1 else 0)] * length
        self.send_response(200)
        self.end_headers()
        for count in (1, length):
            time.sleep(0.05)
            chunk = {"meta_info": {"completion_tokens": count}, "output_ids": ids[:count]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        with self.server.lock:
            self.server.busy -= 1

    def log_message(self, *args):
        pass


@pytest.fixture
def arms(monkeypatch):
    monkeypatch.setattr(turns, "STAGGER_S", 0.02)
    log, lock, made, servers = [], threading.Lock(), [], []
    for name, drift in (("stock", 0), ("w12", 1)):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.log, server.lock, server.drift, server.busy = log, lock, drift, 0
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        result = {}
        made.append(
            SimpleNamespace(
                asked=SimpleNamespace(name=name, load_timeout_s=10.0),
                server=SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}"),
                prompts=PROMPTS,
                result=result,
                fail=lambda error, result=result: result.setdefault("error", str(error)),
                log=log,
            )
        )
    yield made
    for server in servers:
        server.shutdown()
        server.server_close()


def test_rounds_alternate_and_reverse(arms) -> None:
    turns.measure_load(arms, LoadPlan(concurrency=1, output_len=4), 4)
    stock, w12 = (int(arm.server.url.rpartition(":")[2]) for arm in arms)
    assert arms[0].log[2:] == [w12, stock, stock, w12, w12, stock, stock, w12]
    for arm in arms:
        (load,) = arm.result["loads"]
        assert len(load["tok_s_rounds"]) == 4
        assert 0.5 < load["ratio_to_first"] < 2


def test_answers_are_compared_alone_beside_others_and_across(arms) -> None:
    turns.compare(arms)
    stock, w12 = (arm.result["answers"] for arm in arms)
    assert stock["beside_three_others"]["equal"] == 8
    assert w12["same_request_again"]["equal"] == 8
    assert w12["beside_three_others"]["equal"] < 8
    assert set(w12["beside_three_others"]["first_difference"]) == {0}
    assert w12["with_stock"]["equal"] == 8


def test_an_arm_that_fails_leaves_the_others_their_figures(arms) -> None:
    arms[1].server.url = "http://127.0.0.1:9"
    turns.measure_load(arms, LoadPlan(concurrency=1, output_len=4), 2)
    turns.compare(arms)
    assert arms[1].result["error"]
    assert len(arms[0].result["loads"][0]["tok_s_rounds"]) == 2
    assert arms[0].result["answers"]["same_request_again"]["equal"] == 8
