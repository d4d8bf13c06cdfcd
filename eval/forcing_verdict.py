"""The full verdict of token forcing: a candidate against stock, on the same reference tokens.

Two rules, both must hold. Rate: the candidate's mismatch rate exceeds stock's by at most 0.5 points, judged by the
upper end of a one-sided interval, so that too few positions reject. Margin: no mismatch of the candidate that stock
does not share has a margin beyond a near tie; one such token in any number of positions is a wrong answer, however
small the rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.forcing import Mismatch, Verdict
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.paired_rates import Excess, excess

#: Share by which the candidate's mismatch rate may exceed stock's: 0.5 points.
MAX_EXCESS = 0.005
#: Nats within which rounding of each data type may choose the other token. BF16 logits of 16 to 32 stand 0.125
#: apart; margins up to 0.25 were measured for stock's own verify path (docs/measured.md).
NEAR_TIE = {"float32": 1e-4, "float16": 0.1, "bfloat16": 0.5}

_Key = tuple[str, int]


@dataclass(frozen=True)
class ForcingVerdict:
    """Outcome of `compare`; rates and excess are shares of positions.

    Attributes:
        accepted: whether both rules hold.
        excess: candidate's rate minus stock's.
        upper: upper end of its one-sided interval.
        reason: one line that says why.
        positions: positions judged for both.
        stock_rate: counted mismatches a position, stock.
        candidate_rate: the same, candidate.
        candidate_only: positions at which only the candidate was wrong.
        stock_only: positions at which only stock was wrong.
        beyond_tie: mismatches of the candidate that break the margin rule.
        max_excess: the rate rule's limit.
        near_tie: the margin rule's limit, in nats.
        confidence: of the interval.
    """

    accepted: bool
    excess: float
    upper: float
    reason: str
    positions: int
    stock_rate: float
    candidate_rate: float
    candidate_only: int
    stock_only: int
    beyond_tie: tuple[Mismatch, ...]
    max_excess: float
    near_tie: float
    confidence: float

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return asdict(self)


def compare(
    stock: ForcingReport,
    candidate: ForcingReport,
    *,
    dtype: str = "bfloat16",
    near_tie: float | None = None,
    max_excess: float = MAX_EXCESS,
    confidence: float = 0.95,
) -> ForcingVerdict:
    """Judge a candidate's token forcing against stock's on the same reference.

    The margins in both reports must come from a server that neither side controls, the reference's or stock's own
    (`force(judge=...)`): a candidate that scores itself can call any mistake a tie.

    Args:
        stock: stock's report.
        candidate: the candidate's report.
        dtype: data type the servers compute in; gives `near_tie`.
        near_tie: nats, instead of the data type's.
        max_excess: largest accepted excess, a share.
        confidence: of the one-sided interval.

    Raises:
        SpecPilotError: the reports do not judge the same tokens, stock failed somewhere, or `dtype` is unknown.
    """
    limit = _near_tie(dtype) if near_tie is None else near_tie
    wrong_stock, wrong = _counted(stock), _counted(candidate)
    judged = [c for _, c in _paired(stock, candidate) if not c.error]
    rows = [(_of(wrong, v), _of(wrong_stock, v), v.positions) for v in judged]
    estimate = excess(rows, confidence)
    beyond = tuple(m for m in wrong.values() if _beyond(m, limit) and not _shared(m, wrong_stock))
    failed = [v for v in candidate.verdicts if v.error]
    positions = sum(n for *_, n in rows)
    return ForcingVerdict(
        accepted=not failed and not beyond and positions > 0 and estimate.upper <= max_excess,
        excess=estimate.excess,
        upper=estimate.upper,
        reason=_reason(failed, beyond, positions, estimate, max_excess, limit),
        positions=positions,
        stock_rate=_rate(sum(len(b) for _, b, _ in rows), positions),
        candidate_rate=_rate(sum(len(a) for a, _, _ in rows), positions),
        candidate_only=sum(len(a - b) for a, b, _ in rows),
        stock_only=sum(len(b - a) for a, b, _ in rows),
        beyond_tie=beyond,
        max_excess=max_excess,
        near_tie=limit,
        confidence=confidence,
    )


def _near_tie(dtype: str) -> float:
    try:
        return NEAR_TIE[dtype]
    except KeyError:
        raise SpecPilotError(f"no near-tie margin for {dtype!r}", fix=f"use one of {', '.join(NEAR_TIE)}") from None


def _paired(stock: ForcingReport, candidate: ForcingReport) -> list[tuple[Verdict, Verdict]]:
    first, second = ({v.request: v for v in r.verdicts} for r in (stock, candidate))
    if set(first) != set(second) or not first:
        raise SpecPilotError("stock and candidate were not forced through the same requests", fix="force both again")
    for name, verdict in first.items():
        if verdict.error:
            raise SpecPilotError(f"stock failed on {name}: {verdict.error}", fix="repair stock and force it again")
        if not second[name].error and verdict.positions != second[name].positions:
            raise SpecPilotError(f"{name}: stock was forced through other tokens", fix="force both again")
    return [(first[name], second[name]) for name in first]


def _counted(report: ForcingReport) -> dict[_Key, Mismatch]:
    return {(m.request, m.position): m for m in report.counted}


def _of(wrong: Mapping[_Key, Mismatch], verdict: Verdict) -> set[int]:
    return {position for request, position in wrong if request == verdict.request}


def _beyond(mismatch: Mismatch, limit: float) -> bool:
    return mismatch.margin is None or mismatch.margin >= limit  # without a margin: an answer that ended elsewhere


def _shared(mismatch: Mismatch, stock: Mapping[_Key, Mismatch]) -> bool:
    same = stock.get((mismatch.request, mismatch.position))
    return same is not None and same.candidate == mismatch.candidate


def _rate(count: int, positions: int) -> float:
    return count / positions if positions else math.nan


def _reason(
    failed: Sequence[Verdict],
    beyond: Sequence[Mismatch],
    positions: int,
    estimate: Excess,
    max_excess: float,
    limit: float,
) -> str:
    if failed:
        return f"{len(failed)} requests failed, first {failed[0].request}: {failed[0].error}"
    if not positions:
        return "no position was judged"
    if beyond:
        worst = beyond[0]
        how = "no margin" if worst.margin is None else f"margin {worst.margin:.3g} nats"
        place = f"{worst.request} position {worst.position}: {worst.reference} became {worst.candidate}, {how}"
        return f"{len(beyond)} wrong tokens beyond a near tie of {limit:g} nats, first {place}"
    figures = (
        f"excess {estimate.excess:.3%} of {positions} positions, "
        f"upper bound {estimate.upper:.3%}, limit {max_excess:.3%}"
    )
    if estimate.upper <= max_excess:
        return figures
    return f"too {'many mismatches' if estimate.excess > max_excess else 'few positions'}: {figures}"
