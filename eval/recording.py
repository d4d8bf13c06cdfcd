"""Sends prompts to a server and records what comes back, with wall times."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from specpilot_sglang.eval.client import Client, RequestFailedError
from specpilot_sglang.eval.parallel import Progress, run_all, silent
from specpilot_sglang.eval.prompts import Prompt
from specpilot_sglang.eval.records import Request, Run


def greedy(max_new_tokens: int, *, ignore_eos: bool = False) -> dict[str, Any]:
    """Return the sampling parameters of greedy decoding."""
    return {"temperature": 0.0, "max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos}


def record(
    client: Client,
    prompts: Sequence[Prompt],
    sampling: dict[str, Any],
    *,
    concurrency: int = 1,
    about: dict[str, Any] | None = None,
    progress: Progress = silent,
) -> Run:
    """Answer every prompt once; a request that fails is kept with its error, never dropped."""

    def one(prompt: Prompt) -> Request:
        return send(client, prompt, sampling)

    return Run(sampling, run_all(one, prompts, concurrency, progress), about or {})


def send(client: Client, prompt: Prompt, sampling: dict[str, Any]) -> Request:
    """Send one prompt and return its record; `wall_s` spans the HTTP call."""
    begin = time.perf_counter()
    try:
        answer = client.generate(input_ids=prompt.ids, sampling=sampling)
    except RequestFailedError as exc:
        return Request(prompt.id, prompt.suite, prompt.ids, [], "", time.perf_counter() - begin, error=exc.line())
    wall_s = time.perf_counter() - begin
    return Request(prompt.id, prompt.suite, prompt.ids, answer.output_ids, answer.finish, wall_s, answer.verify_steps)


def about_server(client: Client) -> dict[str, Any]:
    """Return what identifies a server in a recorded run: model, dtype, versions, speculative settings."""
    info = client.server_info()
    keys = ("model_path", "dtype", "version", "device", "speculative_algorithm", "speculative_draft_model_path")
    return {"url": client.url, **{key: info[key] for key in keys if key in info}}
