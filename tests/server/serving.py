"""What the server tests ask of a server, and how."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import httpx

from specpilot_sglang.eval.client import RequestFailedError
from specpilot_sglang.eval.parallel import run_all
from specpilot_sglang.eval.servers import Server

CONCURRENCY = 8
#: Greedy requests that are compared with AR; the acceptance run sets 304.
REQUESTS = int(os.environ.get("SPECPILOT_TEST_REQUESTS", "48"))
MAX_NEW_TOKENS = 48
START_TIMEOUT_S = 400.0

QUESTION = "User: Name three colours. Then describe a cat in one sentence.\nAssistant:"
#: Sampling features; on the plugin each must do, token by token, what it does on stock DFLASH.
FEATURES: dict[str, dict[str, Any]] = {
    "stop string": {"temperature": 0, "max_new_tokens": 60, "stop": ["."]},
    "ignore_eos": {"temperature": 0, "max_new_tokens": 120, "ignore_eos": True},
    "sampled with a seed": {"temperature": 0.7, "max_new_tokens": 40, "sampling_seed": 7},
    "top-p with a seed": {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 40, "sampling_seed": 8},
    "repetition penalty": {"temperature": 0, "max_new_tokens": 40, "repetition_penalty": 1.3},
    "min new tokens": {"temperature": 0, "max_new_tokens": 30, "min_new_tokens": 20},
    "one token": {"temperature": 0, "max_new_tokens": 1},
}
SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", '
    '"minimum": 0, "maximum": 120}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}}, '
    '"required": ["name", "age", "tags"], "additionalProperties": false}'
)
COMMON = ["--constrained-json-disable-any-whitespace"]


@dataclass
class Outcome:
    """What one server answered: a result, or the message of its refusal."""

    answers: dict[str, Any] = field(default_factory=dict)

    def ask(self, server: Server) -> Outcome:
        """Send every feature request once, alone."""
        for name, sampling in FEATURES.items():
            self.answers[name] = attempt(server, sampling)
        self.answers["n=2"] = attempt_n2(server)
        self.answers["logprobs"] = attempt_logprobs(server)
        return self


def attempt(server: Server, sampling: dict[str, Any], **extra: Any) -> Any:
    try:
        answer = server.generate(text=QUESTION, sampling=sampling, **extra)
    except RequestFailedError as exc:
        return f"refused: {exc.what.partition('HTTP')[2]}"
    return answer.output_ids, answer.finish


def attempt_n2(server: Server) -> Any:
    body = {"text": QUESTION, "sampling_params": {"temperature": 0, "max_new_tokens": 12, "n": 2}}
    answers = post(server, "/generate", body).json()
    return [a["output_ids"] for a in answers]


def attempt_logprobs(server: Server) -> Any:
    body = {
        "text": QUESTION,
        "sampling_params": {"temperature": 0, "max_new_tokens": 12},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    meta = post(server, "/generate", body).json().get("meta_info", {})
    return [(round(value, 3), token) for value, token, _ in meta.get("output_token_logprobs", [])]


def post(server: Server, path: str, body: dict[str, Any], **kwargs: Any) -> Any:
    return httpx.post(server.url + path, json=body, timeout=300, trust_env=False, **kwargs)


def many(server: Server, bodies: list[dict[str, Any]], concurrency: int = CONCURRENCY) -> list[Any]:
    return run_all(lambda body: post(server, "/generate", body), bodies, concurrency)
