"""Servers that are up together, measured in alternation, and what their answers have in common."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import httpx

from specpilot_sglang.eval.gpu.plan import LoadPlan
from specpilot_sglang.eval.gpu.speed import Stream, chosen_prompts, figures, run_round, steady_tok_s

if TYPE_CHECKING:
    from specpilot_sglang.eval.gpu.arms import ServerArm

logger = logging.getLogger(__name__)
#: Prompts of the comparison, tokens of each answer, and seconds between arrivals: every prompt is prefilled alone.
COMPARED, ANSWER, STAGGER_S = 8, 64, 0.25


def measure_load(arms: Sequence[ServerArm], load: LoadPlan, rounds: int) -> None:
    """Run `rounds` rounds of one load on every arm, each round on all arms in turn, the order reversed every time.

    Puts the speeds into each arm's result, and the ratio of every round to the first arm's of the same round.
    """
    measured: dict[str, list[list[Stream]]] = {arm.asked.name: [] for arm in arms}
    for index in range(-1, rounds):  # one unmeasured round
        for arm in arms if index % 2 else reversed(arms):
            if "error" in arm.result:
                continue
            try:
                streams = _round(arm, load, max(index, 0))
            except (httpx.HTTPError, ValueError) as error:
                arm.fail(error)
                continue
            if index >= 0:
                measured[arm.asked.name].append(streams)
    first: list[float | None] = []
    for arm in arms:
        rounds_of_arm = measured[arm.asked.name]
        speeds = figures(rounds_of_arm, load.concurrency, load.output_len)
        totals = [steady_tok_s(streams) for streams in rounds_of_arm]
        first = first or totals
        ratios = [b / a for a, b in zip(first, totals, strict=False) if a and b]
        speeds["ratio_to_first"] = statistics.median(ratios) if ratios else None
        arm.result.setdefault("loads", []).append(speeds)
        facts = (arm.asked.name, load.concurrency, speeds["tok_s"], speeds["ratio_to_first"])
        logger.info("%s: c=%d %s tok/s, ratio %s", *facts)


def _round(arm: ServerArm, load: LoadPlan, index: int) -> list[Stream]:
    prompts = chosen_prompts(arm.prompts, load.concurrency, index)
    return run_round(arm.server.url, prompts, load.output_len, arm.asked.load_timeout_s)


def compare(arms: Sequence[ServerArm]) -> None:
    """Answer the same prompts alone, again alone and beside others; note which answers are equal, and across arms."""
    alone: dict[str, list[list[int]]] = {}
    for arm in arms:
        if "error" in arm.result:
            continue
        try:
            one, again, beside = (_answers(arm, concurrency) for concurrency in (1, 1, 4))
        except (httpx.HTTPError, ValueError) as error:
            arm.fail(error)
            continue
        alone[arm.asked.name] = one
        agreement: dict[str, Any] = {
            "same_request_again": _agreement(one, again),
            "beside_three_others": _agreement(one, beside),
        }
        agreement |= {f"with_{name}": _agreement(one, other) for name, other in alone.items() if name != arm.asked.name}
        arm.result["answers"] = {"prompts": COMPARED, "tokens": ANSWER, "stagger_s": STAGGER_S, **agreement}
        logger.info("%s: answers %s", arm.asked.name, agreement)


def _answers(arm: ServerArm, concurrency: int) -> list[list[int]]:
    found: list[list[int]] = []
    for begin in range(0, COMPARED, concurrency):
        prompts = arm.prompts[begin : begin + concurrency]
        streams = run_round(arm.server.url, prompts, ANSWER, arm.asked.load_timeout_s, STAGGER_S)
        found += [s.output_ids for s in streams]
    return found


def _agreement(one: list[list[int]], other: list[list[int]]) -> dict[str, Any]:
    """Return how many answers are equal, and the tokens before the first difference of each other one."""
    first = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), None)
        for x, y in zip(one, other, strict=True)
    ]
    return {
        "equal": sum(i is None for i in first),
        "of": len(first),
        "first_difference": [i for i in first if i is not None],
    }
