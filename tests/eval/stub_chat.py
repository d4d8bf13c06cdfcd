"""A server in this process that SGLang's benchmark client and `run_load` accept, with faults to order."""

from __future__ import annotations

import functools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.prompts import encode, load_tokenizer
from specpilot_sglang.eval.suites import Item

tokenizer_of = functools.cache(load_tokenizer)  # once a test session: it takes half a second

WORDS = ["", "apples", "and", "pears", "are", "sold", "by", "the", "dozen", "in", "this", "shop", "every", "day"][1:]


class Listener(ThreadingHTTPServer):
    """Lets many clients knock at once: the usual queue of 5 resets connections of a busy machine."""

    request_queue_size = 128


class StubChat:
    """Looks like `eval.servers.Server` to `run_load`; answers with words, one a chunk.

    Args:
        tokenizer: folder of the tokenizer that counts prompts.
        tmp: folder for the log.
        cached: prompt tokens it claims to have found in its cache.
        thresholds: acceptance threshold by call of `/server_info`; the last one stays.
    """

    def __init__(self, tokenizer: Path, tmp: Path, *, cached: int = 0, thresholds: tuple[float, ...] = (1.0,)) -> None:
        self.tokenizer_path, self.cached, self.thresholds = tokenizer, cached, list(thresholds)
        self._tokenizer = tokenizer_of(tokenizer)
        self.name, self.start_s, self.log, self.command = "stub", 0.1, tmp / "server.log", ["stub"]
        self.env: dict[str, str] = {}
        tmp.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.flushes = 0
        self.verify_calls = 0
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                stub.get(self)

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                stub.post(self, json.loads(self.rfile.read(size) or b"{}"))

            def log_message(self, *args: Any) -> None:
                pass

        self._http = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self.client = Client(self.url)

    def __enter__(self) -> StubChat:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self.client.close()
        self._http.shutdown()
        self._http.server_close()

    def processes(self) -> list[psutil.Process]:
        return []

    def server_info(self) -> dict[str, Any]:
        return self.client.server_info()

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.split("?")[0]
        model = str(self.tokenizer_path)
        if path == "/v1/models":
            return reply(handler, {"data": [{"id": model}]})
        if path == "/model_info":
            return reply(handler, {"model_path": model, "tokenizer_path": model})
        if path == "/server_info":
            threshold = self.thresholds.pop(0) if len(self.thresholds) > 1 else self.thresholds[0]
            state = {"speculative_accept_threshold_single": threshold, "avg_spec_accept_length": 2.0}
            return reply(handler, {"model_path": model, "api_key": "hush", "internal_states": [state]})
        if path == "/metrics/":
            name = "sglang:spec_verify_calls_total"
            text = f'# TYPE {name} counter\n{name}{{model="a"}} {self.verify_calls}\n'
            return raw(handler, text.encode(), "text/plain")
        return reply(handler, {"error": "no such page"}, 404)

    def post(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        path = handler.path.split("?")[0]
        if path == "/flush_cache":
            self.flushes += 1
            return raw(handler, b"flushed", "text/plain")
        if path == "/generate":
            return reply(handler, {"text": "", "output_ids": [5], "meta_info": {"finish_reason": {"type": "length"}}})
        self.requests.append(body)
        self.times.append(time.monotonic())
        return self.chat(handler, body)

    def chat(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        text = body["messages"][0]["content"]
        prompt = len(encode([Item("", "", text)], self._tokenizer)[0].ids)
        words = WORDS[: body["max_completion_tokens"]]
        self.verify_calls += len(words) // 2
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        for word in words:
            time.sleep(0.01)
            send(handler, {"choices": [{"index": 0, "delta": {"content": f" {word}"}}]})
        details = {"cached_tokens_details": {"device": self.cached, "host": 0}}
        send(handler, {"choices": [], "sglext": details if self.cached else {}})
        send(handler, {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": len(words)}})
        handler.wfile.write(b"data: [DONE]\n\n")
        handler.close_connection = True


def send(handler: BaseHTTPRequestHandler, value: dict[str, Any]) -> None:
    handler.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
    handler.wfile.flush()


def reply(handler: BaseHTTPRequestHandler, value: Any, status: int = 200) -> None:
    raw(handler, json.dumps(value).encode(), "application/json", status)


def raw(handler: BaseHTTPRequestHandler, data: bytes, kind: str, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
