"""Questions to a server after its timed load: does it answer a repeated prompt, or an emptied cache, out of memory?

Run as `Experiment.after` on the candidate; what they saw is kept in the block and judged later.
"""

from __future__ import annotations

import secrets
import statistics
import time
from typing import Any

from specpilot_sglang.eval.client import Client

#: Tokens an answer of a probe; enough that decoding, not the HTTP call, is what takes the time.
_TOKENS = 16
_PROMPTS = 5
_SAMPLING = {"temperature": 0.0, "max_new_tokens": _TOKENS, "ignore_eos": True}


def probe(client: Client) -> dict[str, Any]:
    """Ask new prompts, empty the cache, ask them again; return times in seconds and cache hits in tokens.

    The prompts hold random words, so that no server has seen them. An honest server takes about as long the second
    time, in as many verify steps, and reports no cached tokens; answers from a store come at once.
    """
    pairs = []
    for _ in range(_PROMPTS):
        text = _text()
        client.flush_cache()
        first = _ask(client, text)
        client.flush_cache()
        # Right after the first time, so that a host whose speed changes changes both.
        pairs.append((first, _ask(client, text)))
    return {
        "repeat_share": statistics.median(again["s"] / first["s"] for first, again in pairs),
        "first_s": statistics.median(first["s"] for first, _ in pairs),
        "cached_first": max(first["cached"] for first, _ in pairs),
        "cached_again": max(again["cached"] for _, again in pairs),
        "tokens": min(row["tokens"] for pair in pairs for row in pair),
        "steps_first": sum(first["steps"] for first, _ in pairs),
        "steps_again": sum(again["steps"] for _, again in pairs),
    }


def _ask(client: Client, text: str) -> dict[str, Any]:
    begin = time.monotonic()
    answer = client.generate(text=text, sampling=_SAMPLING)
    took = time.monotonic() - begin
    cached = int(answer.meta.get("cached_tokens") or 0)
    return {"s": took, "cached": cached, "tokens": len(answer.output_ids), "steps": answer.verify_steps}


def _text() -> str:
    # The random part comes first: a shared beginning would be a true cache hit between the prompts.
    words = [secrets.token_hex(2) for _ in range(6)]
    return f"{' '.join(words)}: write a short story in which these code words are the names of ships."
