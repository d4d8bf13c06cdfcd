"""The benchmark client's dataset file, command line and environment.

The prompts go as OpenAI chat messages: that dataset form keeps the file's order, lets every request carry its own
fields, and the server applies the model's own chat template. Token counts come from the server's usage report,
which has to be asked for: without it the client would count every answer as long as was allowed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specpilot_sglang.eval.files import write_whole
from specpilot_sglang.eval.load.workload import Workload

#: What the client may inherit. Anything else could change what it measures: PYTHONPATH, LD_PRELOAD, proxies, keys.
_KEPT = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE")


def write_dataset(workload: Workload, path: Path) -> None:
    """Write `workload` as the client's `openai` dataset, one request a line in the workload's order."""
    rows = [_row(workload, index) for index in range(len(workload.items))]
    # One line a request also for prompts with U+2028: ASCII escapes.
    text = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows)
    write_whole(path, text, fix="choose another folder")


def _row(workload: Workload, index: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "messages": workload.items[index].messages,
        "max_tokens": workload.max_new_tokens,
        "temperature": workload.temperature,
        "stream_options": {"include_usage": True},
    }
    if workload.temperature > 0:
        row["seed"] = workload.seed * 1_000_003 + index
    if workload.ignore_eos:
        row["skip_special_tokens"] = False  # so that the text holds every token, end tokens in the middle too
    if workload.thinking is not None:
        row["chat_template_kwargs"] = {"enable_thinking": workload.thinking}
    return row


def command_line(url: str, model: str, served: str, tokenizer: str, workload: Workload, folder: Path) -> list[str]:
    """Return the client's command.

    Args:
        url: of the server.
        model: model path, as the server was given it.
        served: the server's name for the model.
        tokenizer: tokenizer path.
        workload: what is sent.
        folder: holds `dataset.jsonl`, and gets `client.jsonl`.
    """
    place = ("--base-url", url, "--model", model, "--served-model-name", served, "--tokenizer", tokenizer)
    data = ("--dataset-name", "openai", "--dataset-path", str(folder / "dataset.jsonl"))
    load = ("--num-prompts", str(len(workload.items)), "--max-concurrency", str(workload.concurrency))
    # No warm-up of the client's own: it would send the first measured prompt.
    rules = ("--warmup-requests", "0", "--flush-cache", "--cache-report", "--disable-tqdm")
    eos = () if workload.ignore_eos else ("--disable-ignore-eos",)
    kept = ("--output-file", str(folder / "client.jsonl"), "--output-details", "--seed", str(workload.seed))
    # Isolated (-I): no PYTHONPATH, no user site, nothing from the current folder.
    start = (sys.executable, "-I", "-u", "-m", "sglang.benchmark.serving", "--backend", "sglang-oai-chat")
    return [*start, *place, *data, *load, *rules, *eos, *kept]


def client_environment(outer: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the client's environment: a few harmless variables, no GPU, no proxy for the local server."""
    source = os.environ if outer is None else outer
    kept = {name: source[name] for name in _KEPT if name in source}
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "NO_PROXY": "127.0.0.1,localhost", "TOKENIZERS_PARALLELISM": "false"}
