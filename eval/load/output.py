"""Reads the benchmark client's result file, and checks its raw samples by arithmetic."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.load.results import Sample
from specpilot_sglang.eval.load.workload import Workload

#: An answer of so few tokens may be control tokens only, which leave no text and so no time of a first token.
_UNTIMED_TOKENS = 8

_LISTS = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors")


@dataclass(frozen=True)
class ClientOutput:
    """The client's result.

    Attributes:
        samples: one a request, in the workload's order.
        duration_s: from the first request to the last answer, by the client's clock.
        cached_tokens: prompt tokens a request that the server says it found in its cache.
        accept_length: SGLang's running average, None when it decoded plainly.
    """

    samples: tuple[Sample, ...]
    duration_s: float
    cached_tokens: tuple[int, ...]
    accept_length: float | None


def read_output(path: Path, workload: Workload) -> ClientOutput:
    """Read the client's file; raise `SpecPilotError` when it is missing, damaged or about other requests."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        row = json.loads(next(line for line in lines if line.strip()))
        lists = [list(row[name]) for name in _LISTS]
        cached = [int(count or 0) for count in row.get("cached_tokens") or [0] * len(workload.items)]
        duration_s, accept = float(row["duration"]), row.get("accept_length")
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as exc:
        fix = "look into client.log beside it"
        raise SpecPilotError(f"the benchmark client left no usable result ({exc!r})", where=path, fix=fix) from exc
    if any(len(values) != len(workload.items) for values in [*lists, cached]):
        raise SpecPilotError("the benchmark client answered another number of requests than it was given", where=path)
    samples = tuple(_sample(item.id, item.suite, values) for item, *values in zip(workload.items, *lists, strict=True))
    return ClientOutput(samples, duration_s, tuple(cached), None if accept is None else float(accept))


def _sample(name: str, suite: str, values: Sequence[Any]) -> Sample:
    prompt, output, ttft, gaps, text, error = values
    gaps = tuple(float(gap) for gap in gaps)
    # The client keeps no latency of its own in the file: the last token's arrival is the first's plus all gaps.
    latency = float(ttft) + sum(gaps)
    short = " ".join(str(error).split())[-400:]
    return Sample(name, suite, int(prompt), int(output), str(text), float(ttft), gaps, latency, short)


def sample_problems(output: ClientOutput, workload: Workload) -> list[str]:
    """Return what in the raw samples cannot be true of one run at this concurrency."""
    problems: list[str] = []
    good = [s for s in output.samples if not s.error]
    longest = max((s.latency_s for s in good), default=0.0)
    if longest > output.duration_s:
        problems.append(f"a request took {longest:.3f} s in a run of {output.duration_s:.3f} s")
    busy = sum(s.latency_s for s in good)
    if busy > workload.concurrency * output.duration_s:
        problems.append(f"requests took {busy:.1f} s in all, more than {workload.concurrency} at a time can in the run")
    for sample in good:
        if sample.output_tokens > workload.max_new_tokens:
            problems.append(f"{sample.id}: {sample.output_tokens} tokens, {workload.max_new_tokens} were allowed")
        if sample.output_tokens > _UNTIMED_TOKENS and sample.ttft_s <= 0:
            problems.append(f"{sample.id}: {sample.output_tokens} tokens and no text that could be timed")
    return problems


def prompt_problems(output: ClientOutput, prompts: Sequence[Sequence[int]]) -> list[str]:
    """Return where the server's prompt lengths, or its cache hits, do not fit the prompts we sent.

    Args:
        output: the client's result.
        prompts: our own token ids of each prompt, in order.
    """
    problems = []
    shared = shared_prefixes(prompts)
    for sample, cached, ids, prefix in zip(output.samples, output.cached_tokens, prompts, shared, strict=True):
        if sample.error:
            continue
        if sample.prompt_tokens != len(ids):
            problems.append(f"{sample.id}: the server saw {sample.prompt_tokens} prompt tokens, we sent {len(ids)}")
        elif cached > prefix:
            problems.append(
                f"{sample.id}: {cached} prompt tokens came from a cache, at most {prefix} can be of this run"
            )
    return problems


def token_problems(output: ClientOutput, counts: Sequence[int]) -> list[str]:
    """Return samples that claim far more tokens than their text holds.

    Args:
        output: the client's result.
        counts: tokens of each answer's text by our own tokenizer; end and control tokens leave no text.
    """
    return [
        f"{sample.id}: the server counts {sample.output_tokens} tokens, its text holds {count}"
        for sample, count in zip(output.samples, counts, strict=True)
        if not sample.error and sample.output_tokens > 1.25 * count + 8
    ]


def shared_prefixes(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Return for each prompt how many leading tokens it shares with the most similar other one."""
    order = sorted(range(len(prompts)), key=lambda index: list(prompts[index]))
    longest = [0] * len(prompts)
    for left, right in itertools.pairwise(order):
        common = _common(prompts[left], prompts[right])
        longest[left] = max(longest[left], common)
        longest[right] = max(longest[right], common)
    return longest


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))
