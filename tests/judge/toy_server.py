"""A small honest server that speaks SGLang's endpoints, from a toy language model; cheats derive from it.

The toy model's next token is a fixed function of the whole prefix, so plain decoding, speculative decoding and
continuations from a prefix agree, as they do on a real greedy model. A verify step takes real time in `/generate`; chat
answers say what theirs take.
"""

from __future__ import annotations

import functools
import json
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.prompts import encode, load_tokenizer
from specpilot_sglang.eval.suites import Item
from specpilot_sglang.overlay import load_overlay

tokenizer_of = functools.cache(load_tokenizer)
END = 2
BLOCK = 4
WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"),
    *("family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system"),
    *("program", "question", "work", "number", "night", "point", "home", "water", "room", "mother", "area", "money"),
    *("story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side"),
)


@functools.cache
def vocabulary(folder: Path) -> dict[int, str]:
    """Token ids whose text is one word with a space before it, so that texts are tokenised back one to one."""
    tokenizer = tokenizer_of(folder)
    ids = {w: tokenizer(f" {w}", add_special_tokens=False)["input_ids"] for w in WORDS}
    return {one[0]: f" {word}" for word, one in ids.items() if len(one) == 1}


class ToyServer:
    """Looks like `eval.servers.Server`; answers at `step_s` seconds a verify step. Cheats override its hooks."""

    step_s = 0.010
    prefill_s = 0.004
    block = BLOCK

    def __init__(self, arm: Arm, log: Path, tokenizer: Path) -> None:
        self.arm, self.log, self.tokenizer_path = arm, log, tokenizer
        self.name, self.env, self.start_s = arm.name, dict(arm.env), 0.01
        self.command = ["toy", *arm.server_args]
        self.words = vocabulary(tokenizer)
        self.ids = sorted(self.words)
        self.seen: set[tuple[int, ...]] = set()
        self.steps = self.verify_calls = 0
        self.lock = threading.Lock()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")

    def __enter__(self) -> ToyServer:
        toy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                value = toy.get(self.path.split("?")[0].rstrip("/"))
                status, data = (404, "{}") if value is None else (200, value)
                reply(self, data if isinstance(data, str) else json.dumps(data), status)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
                path = self.path.split("?")[0]
                if path == "/v1/chat/completions":
                    return toy.chat(self, body)
                if path == "/flush_cache":
                    toy.flush()
                    return reply(self, "flushed")
                return reply(self, json.dumps(toy.generate(body)))

            def log_message(self, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self.client = Client(self.url)
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self.client.close()
        self._http.shutdown()
        self._http.server_close()

    was_killed = False

    def processes(self) -> list[Any]:
        return []

    def server_info(self) -> dict[str, Any]:
        return self.client.server_info()

    # The model, and hooks that cheats override.

    def choice(self, prefix: Sequence[int]) -> tuple[int, int, float]:
        """Return the best token, the second best, and by how many nats the first leads."""
        code = zlib.crc32(repr(tuple(prefix)).encode())
        first = self.ids[code % len(self.ids)]
        second = self.ids[(code // 64) % len(self.ids)]
        second = second if second != first else self.ids[(code + 1) % len(self.ids)]
        near = (code >> 7) % 25 == 0  # 4% of positions are near ties
        if (code >> 13) % 24 == 0 and len(prefix) > 40:
            first, near = END, False
        return first, second, 0.05 if near else 0.6 + (code % 97) / 30

    def token(self, prefix: Sequence[int]) -> int:
        """The token that decoding emits after `prefix`."""
        return self.choice(prefix)[0]

    def limit(self, wanted: int) -> int:
        """How many tokens an answer gets of those that were asked for."""
        return wanted

    def known(self, prompt: Sequence[int]) -> list[int] | None:
        """A kept answer to `prompt`, if there is one."""
        return None

    def keep(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Hear of an answer."""

    def work(self, prompt: Sequence[int]) -> float:
        """Return the seconds of one verify step."""
        return self.step_s

    def flush(self) -> None:
        self.seen.clear()

    def counted(self) -> int:
        """The hot-path counter that is attested."""
        return self.steps

    def threshold(self) -> float:
        return 1.0

    def attestation(self) -> dict[str, Any] | None:
        if self.arm.overlay is None:
            return None
        loaded = load_overlay(self.arm.overlay)
        return {
            "mode": "overlay",
            "overlay": {"name": loaded.overlay.name, "sha256": loaded.sha256},
            "simulated_acceptance": {},
            "consistent": True,
            "ranks": [{"rank": 0, "hits": {"speculative_steps": self.counted()}, "patches": [], "mechanisms": {}}],
        }

    # Endpoints.

    def get(self, path: str) -> Any:
        model = str(self.tokenizer_path)
        state = {"speculative_accept_threshold_single": self.threshold(), "avg_spec_accept_length": 2.5}
        info = {"model_path": model, "tokenizer_path": model, "internal_states": [state]}
        return {
            "/v1/models": {"data": [{"id": model}]},
            "/model_info": {"model_path": model, "tokenizer_path": model},
            "/server_info": {**info, "speculative_algorithm": "DFLASH", "speculative_num_draft_tokens": self.block},
            "/specpilot": self.attestation(),
            "/metrics": f"# TYPE {METRIC} counter\n{METRIC} {self.verify_calls}\n",
        }.get(path)

    def decode(self, prompt: list[int], new: int, ignore_eos: bool = False) -> Iterator[tuple[list[int], float]]:
        """Yield the tokens of the prefill, then of each verify step, with the seconds that each takes."""
        kept = self.known(prompt)
        if kept is not None:
            yield kept[:new], 0.0
            return
        out: list[int] = []
        room = self.limit(new)
        size = 1
        seconds = 0.0 if tuple(prompt) in self.seen else self.prefill_s
        while len(out) < room and END not in out:
            if out:
                with self.lock:
                    self.steps, self.verify_calls = self.steps + 1, self.verify_calls + 1
                seconds = self.work(prompt)
            chunk: list[int] = []
            while len(chunk) < size and len(out) + len(chunk) < room and END not in chunk:
                token = self.token([*prompt, *out, *chunk])
                chunk.append(self.ids[0] if token == END and ignore_eos else token)
            out += chunk
            yield chunk, seconds
            size = 1 + zlib.crc32(repr(out).encode()) % self.block
        self.keep(prompt, out)

    def cached(self, prompt: list[int]) -> int:
        """Return the cached prefix of a prompt and remember it, as a radix cache does."""
        hit = len(prompt) - 1 if tuple(prompt) in self.seen else 0
        self.seen.add(tuple(prompt))
        return hit

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        tokenizer = tokenizer_of(self.tokenizer_path)
        prompt = body.get("input_ids") or tokenizer(body["text"])["input_ids"]
        sampling = body["sampling_params"]
        if body.get("return_logprob"):
            return self.score(prompt, body)
        steps = list(self.decode(prompt, sampling["max_new_tokens"], sampling.get("ignore_eos", False)))
        time.sleep(sum(seconds for _, seconds in steps))
        out = [token for chunk, _ in steps for token in chunk]
        reason = {"type": "stop" if END in out else "length"}
        meta = {"finish_reason": reason, "cached_tokens": self.cached(prompt), "spec_verify_ct": len(steps) - 1}
        return {"text": "", "output_ids": out, "meta_info": meta}

    def score(self, prompt: list[int], body: dict[str, Any]) -> dict[str, Any]:
        first, second, lead = self.choice(prompt)
        scores = {first: -0.1, second: -0.1 - lead}
        rows = [[scores.get(token, -9.0), token, None] for token in body.get("token_ids_logprob", ())]
        meta: dict[str, Any] = {"output_top_logprobs": [[[-0.1, first, None]]], "output_token_ids_logprobs": [rows]}
        if body.get("logprob_start_len", -1) >= 0:
            start = body["logprob_start_len"]
            choices = [self.choice(prompt[:i]) for i in range(start + 1, len(prompt))]
            meta["input_top_logprobs"] = [None, *([[-0.1, best, None]] for best, _, _ in choices)]
            leads = [
                0.0 if t == c[0] else c[2] if t == c[1] else 8.9
                for t, c in zip(prompt[start + 1 :], choices, strict=True)
            ]
            given = [[-0.1 - lead, t, None] for t, lead in zip(prompt[start + 1 :], leads, strict=True)]
            meta["input_token_logprobs"] = [[None, prompt[start], None], *given]
        return {"text": "", "output_ids": [first], "meta_info": {**meta, "finish_reason": {"type": "length"}}}

    def chat(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        text = body["messages"][0]["content"]
        prompt = encode([Item("", "", text)], tokenizer_of(self.tokenizer_path))[0].ids
        cached = self.cached(prompt)
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        count = 0
        for chunk, seconds in self.decode(prompt, body["max_completion_tokens"], body.get("ignore_eos", False)):
            count += len(chunk)
            words = "".join(self.words.get(token, "") for token in chunk)
            # The seconds are the client's clock, see `bench`: a busy machine must not decide a trial.
            event(handler, {"choices": [{"index": 0, "delta": {"content": words}}], "toy_s": seconds})
        if cached:
            event(handler, {"choices": [], "sglext": {"cached_tokens_details": {"device": cached, "host": 0}}})
        event(handler, {"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": count}})
        handler.wfile.write(b"data: [DONE]\n\n")
        handler.close_connection = True


METRIC = "sglang:spec_verify_calls_total"


def event(handler: BaseHTTPRequestHandler, value: dict[str, Any]) -> None:
    handler.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
    handler.wfile.flush()


def reply(handler: BaseHTTPRequestHandler, text: str, status: int = 200) -> None:
    data = text.encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
