"""Plays a closed loop of requests against predicted step times: a whole load, prompts and tail included."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specpilot_sglang.loop.cost.fit import Fit, fit
from specpilot_sglang.loop.cost.predict import model_of
from specpilot_sglang.loop.cost.table import CostTable


@dataclass(frozen=True)
class Request:
    """Tokens of one request's prompt and answer."""

    prompt: int
    output: int


def simulate(
    requests: Sequence[Request],
    concurrency: int,
    *,
    step: Callable[[int], float],
    tokens_per_step: float,
    prefill: Callable[[int], float],
    request_s: float = 0.0,
) -> float:
    """Return the seconds until the last answer.

    Args:
        requests: in the order they are sent.
        concurrency: requests in flight; the next one is sent when one is answered.
        step: seconds of a step at a number of running requests.
        tokens_per_step: accept length; 1 for plain decoding.
        prefill: seconds of a prefill over a number of tokens; the running requests wait meanwhile.
        request_s: seconds a request spends outside the model before its prefill; others run on meanwhile.
    """
    waiting = list(requests)[::-1]
    arriving = [request_s] * min(concurrency, len(waiting))
    heapq.heapify(arriving)
    running: list[float] = []
    now = 0.0
    while arriving or running:
        if not running and arriving:
            now = max(now, arriving[0])
        while arriving and arriving[0] <= now:
            heapq.heappop(arriving)
            request = waiting.pop()
            now += prefill(request.prompt)
            running.append(request.output - 1.0)  # the prefill gives the first token
        now += step(len(running))
        running = [left - tokens_per_step for left in running]
        done = sum(left <= 1e-9 for left in running)
        running = [left for left in running if left > 1e-9]
        for _ in range(min(done, len(waiting) - len(arriving))):
            heapq.heappush(arriving, now + request_s)
    return now


@dataclass(frozen=True)
class Loads:
    """Predicts whole loads from one table."""

    table: CostTable
    prompt: Fit
    prompt_draft: Fit | None

    def plain_s(self, requests: Sequence[Request], concurrency: int) -> float:
        """Return the seconds of a load by plain decoding."""
        model = model_of(self.table)
        return simulate(
            requests,
            concurrency,
            step=lambda n: model.ar.at(n, 1),
            tokens_per_step=1.0,
            prefill=lambda tokens: self.prompt.at(1, tokens),
            request_s=self.table.request_s,
        )

    def speculative_s(self, requests: Sequence[Request], concurrency: int, block: int, length: float) -> float:
        """Return the seconds of a load with blocks of `block` tokens and accept length `length`."""
        model = model_of(self.table)
        draft = self.prompt_draft
        return simulate(
            requests,
            concurrency,
            step=lambda n: model.step_at(n, block, block),
            tokens_per_step=length,
            prefill=lambda tokens: self.prompt.at(1, tokens) + (draft.at(1, tokens) if draft else 0.0),
            request_s=self.table.request_s,
        )


def loads_of(table: CostTable) -> Loads:
    """Fit a table's prefill passes; without any, prompts cost nothing."""
    rows = table.prefill
    if not rows:
        return Loads(table, Fit(0.0, 0.0, 0.0, math.nan), None)
    drafts = [(1, p.tokens, p.draft_s) for p in rows if p.draft_s > 0]
    return Loads(table, fit([(1, p.tokens, p.seconds) for p in rows]), fit(drafts) if drafts else None)
