"""A block's own answers: tokens a verify step, how many drafts each step accepted, and token forcing against AR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.client import Client, RequestFailedError
from specpilot_sglang.eval.forcing import force
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.parallel import run_all
from specpilot_sglang.eval.prompts import Prompt
from specpilot_sglang.eval.records import Request, Run, load_run

#: SGLang's per-request counts of verify steps that accepted 0, 1, 2, ... drafted tokens.
_HISTOGRAM = "spec_correct_drafts_histogram"


@dataclass(frozen=True)
class Answers:
    """Answers of one server to the forcing prompts; see `BlockResult` for the fields.

    `kept` says that they were written down as the reference of the other arms.
    """

    run: Run | None = None
    accept: dict[str, dict[str, int]] = field(default_factory=dict)
    histogram: tuple[int, ...] = ()
    forcing: dict[str, Any] | None = None
    kept: bool = False

    def keep(self, path: Path) -> Answers:
        """Write the answers to `path`."""
        assert self.run is not None
        self.run.save(path)
        return replace(self, kept=True)


def record_answers(client: Client, prompts: Sequence[Prompt], sampling: dict[str, Any], concurrency: int) -> Answers:
    """Answer every prompt once; a failed request raises, for a reference must be whole."""

    def one(prompt: Prompt) -> tuple[Request, Sequence[int]]:
        answer = client.generate(input_ids=prompt.ids, sampling=sampling)
        request = Request(
            prompt.id, prompt.suite, prompt.ids, answer.output_ids, answer.finish, verify_steps=answer.verify_steps
        )
        return request, answer.meta.get(_HISTOGRAM) or ()

    rows = run_all(one, prompts, concurrency)
    accept: dict[str, dict[str, int]] = {}
    for request, _ in rows:
        if request.verify_steps:
            sums = accept.setdefault(request.suite, {"tokens": 0, "steps": 0})
            sums["tokens"] += len(request.output_ids) - 1  # the first token comes from the prefill
            sums["steps"] += request.verify_steps
    return Answers(Run(sampling, [r for r, _ in rows]), accept, add_up([h for _, h in rows]))


def forced(answers: Answers, client: Client, reference: Path | None, concurrency: int) -> Answers:
    """Return `answers` with the token forcing of AR's recorded run through the same server."""
    if answers.run is None or reference is None:
        raise SpecPilotError("AR's answers are missing", fix="run the night again with --fresh")
    base = load_run(reference)
    known = {r.id: r for r in answers.run.requests}
    try:
        verdicts = force(base, client, first_pass=known, concurrency=concurrency)
    except RequestFailedError as exc:
        raise SpecPilotError(f"token forcing failed: {exc.what}", where=exc.where) from exc
    return replace(answers, forcing=ForcingReport(verdicts).to_json())


def add_up(histograms: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the element-wise sum of histograms of any lengths."""
    length = max((len(h) for h in histograms), default=0)
    return tuple(sum(h[i] for h in histograms if i < len(h)) for i in range(length))
