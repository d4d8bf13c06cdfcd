"""Times the models' passes inside a rank of the server and reports them as hit counters, in microseconds.

Loaded by the timing overlay only, so a server that is not asked for timings runs none of this. Names of counters:
`cost.PHASE.BATCHxWIDTH.us` and `.n`, and `cost.prefill.TOKENS.us` and `.n` with tokens rounded up to 16.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from specpilot_sglang.patching import Kind, Patch
from specpilot_sglang.plugin import counters

PREFIX = "cost"
_BUCKET = 16
_RUNNER = "sglang.srt.model_executor.model_runner:ModelRunner.forward"
_RUNNER_FINGERPRINT = "ebae127423b34830"
_WORKER = "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2."
#: Parts of drafting outside the drafter's own pass: its head, and its keys and values of accepted tokens.
_DRAFT_PARTS = {
    "_greedy_sample_from_vocab_parallel_head": "253974613829cf98",
    "_append_target_hidden_to_draft_kv_by_loc": "f31b5b4466bbffc5",
}


def patches() -> Iterable[Patch]:
    """Return the timing patches; the drafter's are there whether or not a drafter runs."""
    clock = Clock()

    def forward(original: Callable[..., Any], runner: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        phase = phase_of(runner, batch)
        clock.step(phase, batch)
        with clock.span(phase, runner.device):
            return original(runner, batch, *args, **kwargs)

    def part(original: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> Any:
        with clock.span("draft" if clock.stepping else "prefill_draft", worker.device):
            return original(worker, *args, **kwargs)

    yield Patch(_RUNNER, Kind.AROUND, forward, _RUNNER_FINGERPRINT, "times the models' passes")
    for name, fingerprint in _DRAFT_PARTS.items():
        yield Patch(_WORKER + name, Kind.AROUND, part, fingerprint, "times drafting")


def phase_of(runner: Any, batch: Any) -> str:
    """Return `draft`, `verify`, `decode` or `prefill` for one pass."""
    if runner.is_draft_worker:
        return "draft"
    mode = batch.forward_mode
    if mode.is_target_verify():
        return "verify"
    return "decode" if mode.is_decode() else "prefill"


class Clock:
    """Adds up seconds by phase, batch and width; a step runs from its first pass to the next step's first."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._place = ""
        self._tokens = 0
        self._last: tuple[str, float] | None = None
        self._events: deque[tuple[str, Any, Any]] = deque()

    @property
    def stepping(self) -> bool:
        """Whether the last pass belonged to a decoding step, not to a prefill."""
        return self._last is not None

    def step(self, phase: str, batch: Any) -> None:
        """Note that a pass of `phase` begins; the first pass of a step is `draft`, or `decode` without a drafter."""
        if phase == "prefill":
            tokens = len(batch.input_ids)
            self._tokens, self._last = -(-tokens // _BUCKET) * _BUCKET, None
            return
        if phase == "verify":
            return
        size = int(batch.batch_size)
        self._place = f"{size}x{max(1, len(batch.input_ids) // max(1, size))}"
        begin = self._now()
        if self._last and self._last[0] == self._place:
            self._add(f"step.{self._place}", begin - self._last[1])
        self._last = (self._place, begin)

    def span(self, phase: str, device: Any) -> _Span:
        """Return a context that times one pass or part; on CUDA by events, so that nothing waits."""
        name = f"{phase}.{self._tokens if phase.startswith('prefill') else self._place}"
        return _Span(self, name, "cuda" if str(device).startswith("cuda") else "cpu")

    def _add(self, name: str, seconds: float) -> None:
        counters.hit(f"{PREFIX}.{name}.us", round(1e6 * seconds))
        counters.hit(f"{PREFIX}.{name}.n")

    def _drain(self) -> None:
        while self._events and self._events[0][2].query():
            name, begin, end = self._events.popleft()
            self._add(name, begin.elapsed_time(end) / 1e3)


class _Span:
    def __init__(self, clock: Clock, name: str, device: str) -> None:
        self._clock, self._name, self._device = clock, name, device
        self._begin: Any = None

    def __enter__(self) -> None:
        self._begin = _event() if self._device == "cuda" else self._clock._now()

    def __exit__(self, *args: object) -> None:
        if self._begin is None:
            return
        if self._device == "cuda":
            self._clock._events.append((self._name, self._begin, _event()))
            self._clock._drain()
        else:
            self._clock._add(self._name, self._clock._now() - self._begin)


def _event() -> Any:
    import torch

    if torch.cuda.is_current_stream_capturing():  # a graph's capture is no step, and events of it cannot be read
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
