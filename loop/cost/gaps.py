"""Splits each term of a step into its ceiling, the kernels' gap and overhead; the largest gap comes first."""

from __future__ import annotations

from dataclasses import dataclass

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.cost.table import CostTable, Rates, StepTime


@dataclass(frozen=True)
class Term:
    """One term at one batch size, in seconds.

    Attributes:
        name: `t_AR`, `t_draft`, `t_verify`, `t_overhead`, or `t_step` where a step could not be split.
        batch: running requests.
        width: tokens a request.
        seconds: the whole term.
        ceiling_s: the least that the machine's measured rates allow; None when work or rates are unknown.
        bound: `bytes` or `FLOP`: what the ceiling comes from.
        gap_s: passes minus ceiling; None without a ceiling. Where passes were not timed it holds the overhead too.
        overhead_s: wall minus passes; 0 for draft and verify, whose share of it is `t_overhead`.
        timed: whether the passes were timed apart from the rest of the step.
    """

    name: str
    batch: int
    width: int
    seconds: float
    ceiling_s: float | None
    bound: str
    gap_s: float | None
    overhead_s: float
    timed: bool = True

    @property
    def loss_s(self) -> float:
        """What could be gained at most: gap and overhead."""
        return (self.gap_s or 0.0) + self.overhead_s


def gaps(table: CostTable, batch: int | None = None, width: int | None = None) -> list[Term]:
    """Return the terms of plain decoding and of a speculative step, the largest loss first.

    Args:
        table: a cost table.
        batch: running requests; the smallest measured one by default.
        width: tokens a request; the drafter's own block, or the nearest measured width, by default.

    Raises:
        SpecPilotError: nothing was measured there.
    """
    batch = min(p.batch for p in table.spec) if batch is None else batch
    at_batch = [p for p in table.spec if p.batch == batch]
    wanted = table.block if width is None else width
    chosen = sorted(at_batch, key=lambda p: abs(p.width - wanted))[:1]
    plain = [p for p in table.ar if p.batch == batch]
    if not chosen or not plain or (width is not None and chosen[0].width != width):
        known = ", ".join(f"{p.batch}x{p.width}" for p in table.spec)
        raise SpecPilotError(
            f"no step times at batch {batch}, width {wanted}", fix=f"measured (batch x width): {known}"
        )
    terms = [*_plain(table, plain[0]), *_speculative(table, chosen[0])]
    return sorted(terms, key=lambda term: term.loss_s, reverse=True)


def _plain(table: CostTable, point: StepTime) -> list[Term]:
    ceiling, bound = _ceiling(table, point, "target")
    passes = point.step_s if point.verify_s is None else point.verify_s
    return [_term("t_AR", point, point.step_s, ceiling, bound, passes, timed=point.verify_s is not None)]


def _speculative(table: CostTable, point: StepTime) -> list[Term]:
    target, bound = _ceiling(table, point, "target")
    draft, draft_bound = _ceiling(table, point, "draft")
    if point.draft_s is None or point.verify_s is None or point.overhead_s is None:
        both = None if target is None or draft is None else target + draft
        return [_term("t_step", point, point.step_s, both, bound, point.step_s, timed=False)]
    overhead = Term("t_overhead", point.batch, point.width, point.overhead_s, None, "", None, point.overhead_s)
    return [
        _term("t_verify", point, point.verify_s, target, bound, point.verify_s),
        _term("t_draft", point, point.draft_s, draft, draft_bound, point.draft_s),
        overhead,
    ]


def _term(
    name: str,
    point: StepTime,
    whole: float,
    ceiling: float | None,
    bound: str,
    passes: float,
    *,
    timed: bool = True,
) -> Term:
    gap = None if ceiling is None else passes - ceiling
    return Term(name, point.batch, point.width, whole, ceiling, bound, gap, whole - passes, timed)


def _ceiling(table: CostTable, point: StepTime, model: str) -> tuple[float | None, str]:
    if table.work is None or table.rates is None:
        return None, ""
    moved, flops = (
        (table.work.target_bytes, table.work.target_flops)
        if model == "target"
        else (table.work.draft_bytes, table.work.draft_flops)
    )
    return ceiling(moved, flops * point.batch * point.width, table.rates)


def ceiling(moved: float, flops: float, rates: Rates) -> tuple[float, str]:
    """Return the least seconds for moving `moved` bytes and computing `flops`, and which of both decides."""
    by_bytes, by_flops = moved / rates.bytes_s, flops / rates.flops_s
    return (by_bytes, "bytes") if by_bytes >= by_flops else (by_flops, "FLOP")
