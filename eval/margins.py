"""How near two tokens are at a prefix, by a server's own log-probabilities."""

from __future__ import annotations

from typing import Any

from specpilot_sglang.eval.client import Client, RequestFailedError


def margin_between(judge: Client, prefix: list[int], first: int, second: int) -> float | None:
    """Return by how many nats the less likely of two tokens trails the most likely token after `prefix`.

    Zero means an exact tie at the top. Measured against the top, not between the two: two tokens that are both
    unlikely are no near tie. None when the server returns no such log-probabilities.

    Args:
        judge: server that scores the prefix with one forward pass (prefill).
        prefix: token ids before the position.
        first: one token id.
        second: another token id.
    """
    answer = judge.generate(
        input_ids=prefix,
        sampling={"temperature": 0.0, "max_new_tokens": 1},
        return_logprob=True,
        top_logprobs_num=1,
        token_ids_logprob=[first, second],
    )
    try:
        top = float(answer.meta["output_top_logprobs"][0][0][0])
        scored = {int(token): float(value) for value, token, *_ in answer.meta["output_token_ids_logprobs"][0]}
        return max(0.0, top - min(scored[first], scored[second]))
    except (KeyError, IndexError, TypeError):
        return None


def top_tokens(judge: Client, prompt: list[int], output: list[int]) -> list[tuple[int, float]]:
    """Return for each output position the most likely token and its lead over the given one, in one prefill.

    Args:
        judge: server.
        prompt: prompt token ids, at least one.
        output: token ids to score, each given the prompt and those before it.

    Raises:
        RequestFailedError: the server returned no or too few input log-probabilities.
    """
    answer = judge.generate(
        input_ids=prompt + output,
        sampling={"temperature": 0.0, "max_new_tokens": 1},
        return_logprob=True,
        logprob_start_len=len(prompt) - 1,
        top_logprobs_num=1,
    )
    given = _tail(answer.meta.get("input_token_logprobs"), len(output))
    best = _tail(answer.meta.get("input_top_logprobs"), len(output))
    if given is None or best is None or [int(entry[1]) for entry in given] != output:
        raise RequestFailedError("/generate: input log-probabilities are missing or of other tokens", where=judge.url)
    return [(int(b[0][1]), max(0.0, float(b[0][0]) - float(g[0]))) for g, b in zip(given, best, strict=True)]


def _tail(entries: Any, count: int) -> list[Any] | None:
    # The first entry may stand for the token before the scored ones and hold no value.
    if not isinstance(entries, list) or len(entries) < count:
        return None
    tail = entries[len(entries) - count :]
    return tail if all(entry and entry[0] is not None for entry in tail) else None
