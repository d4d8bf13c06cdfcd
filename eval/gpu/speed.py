"""Decode speed of a running server at a fixed concurrency, measured from outside through streamed `/generate`."""

from __future__ import annotations

import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Stream:
    """What one streamed request did: `events` are (seconds, tokens so far), seconds on the caller's clock.

    `begin` is when it was sent.
    """

    begin: float = 0.0
    events: list[tuple[float, int]] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def tok_s(self) -> float | None:
        """Tokens per second after the first chunk; None when there was only one chunk."""
        (t0, n0), (t1, n1) = self.events[0], self.events[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else None

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first chunk."""
        return self.events[0][0] - self.begin

    def tokens_at(self, moment: float) -> float:
        """Tokens delivered by `moment`, linear between chunks."""
        before = [e for e in self.events if e[0] <= moment]
        after = [e for e in self.events if e[0] > moment]
        if not before or not after:
            return float((before or after)[-1 if before else 0][1])
        (t0, n0), (t1, n1) = before[-1], after[0]
        return n0 + (n1 - n0) * (moment - t0) / (t1 - t0)


def generate(base_url: str, input_ids: list[int], output_len: int, timeout_s: float) -> Stream:
    """Stream one greedy request of exactly `output_len` tokens (`ignore_eos`); raises `httpx.HTTPError`."""
    body = {
        "input_ids": input_ids,
        "sampling_params": {"temperature": 0, "max_new_tokens": output_len, "ignore_eos": True},
        "stream": True,
    }
    result = Stream(time.perf_counter())
    with httpx.stream("POST", f"{base_url}/generate", json=body, timeout=timeout_s) as response:
        if response.status_code != 200:
            response.read()
            raise httpx.HTTPStatusError(response.text[:300], request=response.request, response=response)
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            now = time.perf_counter()
            chunk = json.loads(line[6:])
            result.meta = chunk["meta_info"]
            result.output_ids = chunk.get("output_ids") or []
            result.events.append((now, int(result.meta["completion_tokens"])))
    return result


def steady_tok_s(streams: list[Stream]) -> float | None:
    """Tokens per second of all streams together while every one of them was decoding; None if that never was."""
    begin = max(s.events[0][0] for s in streams)
    end = min(s.events[-1][0] for s in streams)
    if end <= begin:
        return None
    return sum(s.tokens_at(end) - s.tokens_at(begin) for s in streams) / (end - begin)


def accept_length(streams: list[Stream]) -> float | None:
    """Tokens per verify step over all streams, from SGLang's own counts; None for a server without speculation."""
    steps = sum(int(s.meta.get("spec_verify_ct") or 0) for s in streams)
    return sum(int(s.meta["completion_tokens"]) for s in streams) / steps if steps else None


def run_round(
    base_url: str, prompts: list[list[int]], output_len: int, timeout_s: float, stagger_s: float = 0.0
) -> list[Stream]:
    """Send all prompts at once, or `stagger_s` seconds apart; return their streams in order.

    Raises:
        ValueError: a request delivered fewer or more than `output_len` tokens.
    """

    def one(place: int) -> Stream:
        time.sleep(place * stagger_s)
        return generate(base_url, prompts[place], output_len, timeout_s)

    with ThreadPoolExecutor(len(prompts)) as pool:
        streams = list(pool.map(one, range(len(prompts))))
    short = [s.events[-1][1] for s in streams if s.events[-1][1] != output_len]
    if short:
        raise ValueError(f"requests ended early: {short} of {output_len} tokens")
    return streams


def chosen_prompts(prompts: list[list[int]], concurrency: int, index: int) -> list[list[int]]:
    """Return the prompts of round `index`: the next `concurrency` ones, around the list."""
    return [prompts[(index * concurrency + i) % len(prompts)] for i in range(concurrency)]


def run_load(
    base_url: str, prompts: list[list[int]], concurrency: int, output_len: int, repeats: int, timeout_s: float
) -> dict[str, Any]:
    """Run `repeats` rounds of `concurrency` simultaneous requests after one unmeasured round; return the speeds.

    Speeds are tokens per second: `tok_s` is the median round's total in the steady window, `request_tok_s` the
    median request's, `ttft_s` the median request's seconds to the first token. Every request must deliver
    `output_len` tokens, or `ValueError` is raised.
    """
    rounds = [
        run_round(base_url, chosen_prompts(prompts, concurrency, index), output_len, timeout_s)
        for index in range(repeats + 1)
    ]
    return figures(rounds[1:], concurrency, output_len)


def figures(rounds: list[list[Stream]], concurrency: int, output_len: int) -> dict[str, Any]:
    """Return the speeds of measured rounds; see `run_load`."""
    flat = [s for streams in rounds for s in streams]
    totals = [total for streams in rounds if (total := steady_tok_s(streams)) is not None]
    singles = [speed for s in flat if (speed := s.tok_s) is not None]
    return {
        "concurrency": concurrency,
        "output_len": output_len,
        "tok_s": statistics.median(totals) if totals else None,
        "tok_s_rounds": totals,
        "request_tok_s": statistics.median(singles) if singles else None,
        "ttft_s": statistics.median(s.ttft_s for s in flat) if flat else None,
        "accept_length": accept_length(flat),
    }
