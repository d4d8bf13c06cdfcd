"""Token forcing in one prefill a request: quick, but it does not touch the draft and verify path.

It scores every position by the input log-probabilities of the whole reference. Use it to tell a wrong verify
path from wrong weights or kernels: a server whose prefill agrees and whose decoding does not has the first.
"""

from __future__ import annotations

from specpilot_sglang.eval.client import Client, RequestFailedError
from specpilot_sglang.eval.forcing import Mismatch, Verdict, check_continuable, failed
from specpilot_sglang.eval.margins import top_tokens
from specpilot_sglang.eval.parallel import Progress, run_all, silent
from specpilot_sglang.eval.records import Request, Run


def force_by_prefill(
    reference: Run, candidate: Client, *, concurrency: int = 1, progress: Progress = silent
) -> list[Verdict]:
    """Score every request of `reference` by one prefill of `candidate`; arguments as in `forcing.force`."""
    check_continuable(reference)
    return run_all(lambda request: _score(request, candidate), reference.requests, concurrency, progress)


def _score(request: Request, candidate: Client) -> Verdict:
    if request.error or not request.output_ids:
        return failed(request, request.error or "the reference's output is empty: nothing to compare")
    try:
        tops = top_tokens(candidate, request.prompt_ids, request.output_ids)
    except RequestFailedError as exc:
        return failed(request, exc.line())
    mismatches = [
        Mismatch(request.id, position, token, top, lead, by_prefill=True)
        for position, (token, (top, lead)) in enumerate(zip(request.output_ids, tops, strict=True))
        if token != top
    ]
    return Verdict(request.id, request.suite, len(tops), len(tops), mismatches)
