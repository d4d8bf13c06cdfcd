"""Token forcing: is every token of a reference run what the candidate would have chosen there?

The candidate generates greedily through its own draft and verify path. Where it leaves the reference the
position is recorded and generation goes on from the reference's prefix, so that one early difference does not
spoil all later positions. The first token of each such restart comes from the candidate's prefill, all others
from its decode or verify path; the report counts both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.client import Client, RequestFailedError
from specpilot_sglang.eval.margins import margin_between
from specpilot_sglang.eval.parallel import Progress, run_all, silent
from specpilot_sglang.eval.records import Request, Run

#: Sampling keys under which a request can be continued from any prefix. Penalties and grammars keep state.
_CONTINUABLE = {
    *("temperature", "max_new_tokens", "ignore_eos", "stop_token_ids", "skip_special_tokens"),
    *("spaces_between_special_tokens", "no_stop_trim", "top_p", "top_k", "min_p", "n"),
}


@dataclass(frozen=True)
class Mismatch:
    """One position at which the candidate chose another token.

    Attributes:
        request: id of the request.
        position: index into the reference's output.
        reference: the reference's token; None when the candidate went on after the reference's end.
        candidate: the candidate's token; None when it ended there.
        margin: nats by which the less likely of both tokens trails the most likely token at this prefix, by the
            judging server's own logits; None when a token is missing or could not be scored.
        by_prefill: whether the candidate's token came from a prefill.
    """

    request: str
    position: int
    reference: int | None
    candidate: int | None
    margin: float | None
    by_prefill: bool


@dataclass(frozen=True)
class Verdict:
    """Token forcing of one request; `positions` were judged, `by_prefill` of them by a prefill's logits."""

    request: str
    suite: str
    positions: int
    by_prefill: int
    mismatches: list[Mismatch] = field(default_factory=list)
    error: str = ""


def force(
    reference: Run,
    candidate: Client,
    *,
    judge: Client | None = None,
    concurrency: int = 1,
    first_pass: Mapping[str, Request] | None = None,
    progress: Progress = silent,
) -> list[Verdict]:
    """Force every request of `reference` through `candidate`.

    Args:
        reference: a greedy run.
        candidate: server under test.
        judge: server whose logits give the margins; the candidate by default.
        concurrency: requests in flight.
        first_pass: the candidate's own answers to the same prompts by request id, if already known; they save
            the first generation of each request.
        progress: called with (done, total).

    Raises:
        SpecPilotError: the run is not greedy, is empty, or cannot be continued from a prefix.
    """
    check_continuable(reference)
    known = first_pass or {}

    def one(request: Request) -> Verdict:
        return force_request(request, candidate, reference.sampling, judge or candidate, known.get(request.id))

    return run_all(one, reference.requests, concurrency, progress)


def check_continuable(run: Run) -> None:
    """Raise `SpecPilotError` unless `run` has requests and its sampling can be continued from any prefix."""
    if not run.requests:
        raise SpecPilotError("the reference has no requests", fix="record a run with at least one")
    extra = {key for key, value in run.sampling.items() if value is not None} - _CONTINUABLE
    if extra:
        raise SpecPilotError(f"token forcing cannot continue requests with {sorted(extra)}", fix="record without them")
    if run.sampling.get("temperature") != 0 or run.sampling.get("n", 1) != 1:
        raise SpecPilotError("the reference is not greedy", fix="record with temperature 0 and n 1")


def force_request(
    request: Request, candidate: Client, sampling: dict[str, Any], judge: Client, first: Request | None = None
) -> Verdict:
    """Force one request; a failed one has `error` set and counts as judged nowhere."""
    if request.error:
        return failed(request, f"failed in the reference: {request.error}")
    if not request.output_ids:
        return failed(request, "the reference's output is empty: nothing to compare")
    if first is not None and first.error:
        return failed(request, first.error)
    if first is not None and first.prompt_ids != request.prompt_ids:
        raise SpecPilotError(f"first pass of {request.id} has another prompt", fix="use the same prompts")
    try:
        return _walk(request, candidate, sampling, judge, first)
    except RequestFailedError as exc:
        return failed(request, exc.line())


def _walk(
    request: Request, candidate: Client, sampling: dict[str, Any], judge: Client, first: Request | None
) -> Verdict:
    reference, mismatches, start, prefills = request.output_ids, [], 0, 0
    # After an end by token the candidate must end too: leave it room for one token more.
    room = 1 if request.finish == "stop" else 0
    while start < len(reference):
        if first is not None and start == 0:
            got = first.output_ids
        else:
            budget = {**sampling, "max_new_tokens": len(reference) - start + room}
            got = candidate.generate(input_ids=request.prompt_ids + reference[:start], sampling=budget).output_ids
        prefills += 1
        step = first_difference(reference[start:], got)
        if step is None:
            break
        position = start + step
        pair = _at(reference, position), _at(got, step)
        prefix = request.prompt_ids + reference[:position]
        mismatches.append(Mismatch(request.id, position, *pair, _margin(judge, prefix, *pair), by_prefill=step == 0))
        start = position + 1
    return Verdict(request.id, request.suite, len(reference), prefills, mismatches)


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Return the first index at which two token sequences differ, lengths included; None when equal."""
    for index, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return index
    return None if len(expected) == len(got) else min(len(expected), len(got))


def _margin(judge: Client, prefix: list[int], reference: int | None, candidate: int | None) -> float | None:
    if reference is None or candidate is None:
        return None
    return margin_between(judge, prefix, reference, candidate)


def _at(tokens: Sequence[int], index: int) -> int | None:
    return tokens[index] if index < len(tokens) else None


def failed(request: Request, error: str) -> Verdict:
    """Return the verdict of a request that could not be judged."""
    return Verdict(request.id, request.suite, 0, 0, error=error)
