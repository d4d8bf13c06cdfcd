"""A server in this process that answers `/generate` as SGLang does, from a toy model with faults to order.

The toy model: the next token is a fixed function of the whole prefix, so a continuation from a reference's
prefix gives the reference's next token, as a real greedy model does.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

END = 2
VOCABULARY = 1000

#: (prefix, token the model would give) -> token given instead; None ends the output there.
Fault = Callable[[list[int], int], int | None]


def next_token(prefix: list[int]) -> int:
    """The toy model: never the end token, except once the prefix has 40 tokens or more."""
    return END if len(prefix) >= 40 else 3 + zlib.crc32(repr(prefix).encode()) % (VOCABULARY - 3)


def decode(prefix: list[int], new: int, fault: Fault | None = None, ignore_eos: bool = False) -> tuple[list[int], str]:
    """Greedy decoding of the toy model; `fault` changes tokens as a broken verify path would."""
    out: list[int] = []
    while len(out) < new:
        token: int | None = next_token(prefix + out)
        if fault is not None:
            token = fault(prefix + out, token)
        if token is None:
            return out, "length"
        out.append(token)
        if token == END and not ignore_eos:
            return out, "stop"
    return out, "length"


class Listener(ThreadingHTTPServer):
    """Lets many clients knock at once: the usual queue of 5 resets connections of a busy machine."""

    request_queue_size = 128


class StubServer:
    """Context manager; `.url` is where it listens, `.bodies` are the `/generate` requests seen."""

    def __init__(self, fault: Fault | None = None, *, margin: float = 0.5, answer: Callable | None = None) -> None:
        self.fault, self.margin, self.answer = fault, margin, answer
        self.bodies: list[dict[str, Any]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
                stub.bodies.append(body)
                status, reply = stub.answer(body) if stub.answer else (200, stub.generate(body))
                data = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> StubServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        prefix, sampling = body["input_ids"], body["sampling_params"]
        scoring = body.get("return_logprob", False)
        # Scoring is one prefill: the faults of the decode path do not touch it.
        out, finish = decode(
            prefix, sampling["max_new_tokens"], None if scoring else self.fault, sampling.get("ignore_eos", False)
        )
        meta: dict[str, Any] = {"finish_reason": {"type": finish}, "completion_tokens": len(out)}
        if self.fault is not None or not scoring:
            meta["spec_verify_ct"] = max(1, len(out) // 2)
        if scoring:
            self._score(prefix, body, meta)
        return {"text": "", "output_ids": out, "meta_info": meta}

    def _score(self, prefix: list[int], body: dict[str, Any], meta: dict[str, Any]) -> None:
        best = next_token(prefix)
        meta["output_top_logprobs"] = [[[-0.1, best, None]]]
        if "token_ids_logprob" in body:
            scores = [[-0.1 if t == best else -0.1 - self.margin, t, None] for t in body["token_ids_logprob"]]
            meta["output_token_ids_logprobs"] = [scores]
        start = body.get("logprob_start_len", -1)
        if start >= 0:
            tokens = range(start, len(prefix))
            tops = [next_token(prefix[:i]) for i in tokens]
            meta["input_top_logprobs"] = [None] + [[[-0.1, top, None]] for top in tops[1:]]
            given = [
                [-0.1 if prefix[i] == top else -0.1 - self.margin, prefix[i], None]
                for i, top in zip(tokens, tops, strict=True)
            ]
            meta["input_token_logprobs"] = [[None, prefix[start], None], *given[1:]]
