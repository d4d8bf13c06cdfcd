"""A light benchmark client inside this process: what SGLang's own would send and write, without its 15 s of imports.

It takes the place of the client's process only; `run_load` around it, with all of its checks, is the real one. Its
times are those that the toy server says its work takes, in as many lanes as there are requests in flight: what the
machine does besides has no part in them, so that a trial's outcome follows from the candidate alone.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from specpilot_sglang.eval.load.process import CLIENT_SLEEP_S, OutsideClock
from specpilot_sglang.eval.parallel import run_all

#: Seconds that a request takes beside the server's work.
_WIRE_S = 0.001


class LightClient:
    """Stands in for `eval.load.run.run_client`; `clock` is the speed of its clock, 1 is honest."""

    def __init__(self, clock: float = 1.0) -> None:
        self.clock = clock

    def __call__(self, command: Sequence[str], env: dict[str, str], log: Path, timeout_s: float) -> OutsideClock:
        url = command[command.index("--base-url") + 1]
        concurrency = int(command[command.index("--max-concurrency") + 1])
        rows = [json.loads(line) for line in (log.parent / "dataset.jsonl").read_text().splitlines()]
        httpx.post(f"{url}/flush_cache", timeout=60, trust_env=False)
        begin = time.monotonic()
        found = run_all(lambda row: self.one(url, row), rows, concurrency)
        window = in_lanes([row.pop("took_s") for row in found], concurrency)
        keys = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors", "cached_tokens")
        lists = {key: [row[key] for row in found] for key in keys}
        (log.parent / "client.jsonl").write_text(
            json.dumps({"duration": window * self.clock, "accept_length": 2.5, **lists}) + "\n"
        )
        return OutsideClock(time.monotonic() - begin, window + CLIENT_SLEEP_S)

    def one(self, url: str, row: dict[str, Any]) -> dict[str, Any]:
        body = {**row, "max_completion_tokens": row["max_tokens"], "stream": True}
        times, text, usage, cached = [], "", {}, 0
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                cached = event.get("sglext", {}).get("cached_tokens_details", {}).get("device", cached)
                for choice in event["choices"]:
                    times.append(self.clock * (event["toy_s"] + (0.0 if times else _WIRE_S)))
                    text += choice["delta"]["content"]
        return {
            **{"input_lens": usage["prompt_tokens"], "output_lens": usage["completion_tokens"], "ttfts": times[0]},
            **{"itls": times[1:], "generated_texts": text, "errors": "", "cached_tokens": cached},
            "took_s": sum(times) / self.clock,
        }


def in_lanes(times: Sequence[float], lanes: int) -> float:
    """Seconds until all are done when each begins as soon as one of `lanes` is free."""
    free = [0.0] * lanes
    for seconds in times:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)
