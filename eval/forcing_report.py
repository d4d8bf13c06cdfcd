"""Counts, rate, interval and decision of a token forcing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.forcing import Mismatch, Verdict
from specpilot_sglang.eval.statistics import binomial_interval

#: Nats under which two float32 logits are a tie: an order of summation decides, not the method.
EXCUSE_MARGIN = 1e-4


@dataclass(frozen=True)
class ForcingReport:
    """Outcome of `forcing.force` over a run.

    Attributes:
        verdicts: one a request.
        excuse_margin: a mismatch with a smaller margin, in nats, does not count.
    """

    verdicts: Sequence[Verdict]
    excuse_margin: float = EXCUSE_MARGIN

    @property
    def positions(self) -> int:
        """Judged positions."""
        return sum(v.positions for v in self.verdicts)

    @property
    def by_prefill(self) -> int:
        """Judged positions whose token came from a prefill."""
        return sum(v.by_prefill for v in self.verdicts)

    @property
    def mismatches(self) -> list[Mismatch]:
        """All mismatches, excused ones included."""
        return [m for v in self.verdicts for m in v.mismatches]

    @property
    def counted(self) -> list[Mismatch]:
        """Mismatches that are not excused; one without a margin never is."""
        return [m for m in self.mismatches if m.margin is None or m.margin >= self.excuse_margin]

    @property
    def failed(self) -> list[Verdict]:
        """Requests that could not be judged."""
        return [v for v in self.verdicts if v.error]

    @property
    def rate(self) -> float:
        """Counted mismatches a position; NaN when nothing was judged."""
        return len(self.counted) / self.positions if self.positions else float("nan")

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the exact binomial interval of the rate."""
        return binomial_interval(len(self.counted), max(self.positions, len(self.counted)), confidence)

    def within(self, max_rate: float = 0.0) -> bool:
        """Return whether every request was judged and the rate is at most `max_rate`."""
        return bool(self.positions) and not self.failed and self.rate <= max_rate

    def equal_requests(self) -> int:
        """Return how many requests have no mismatch at all, excused or not."""
        return sum(not v.mismatches and not v.error for v in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """Return counts, rate, interval, every mismatch and every failure as JSON values."""
        low, high = self.interval()
        return {
            "requests": len(self.verdicts),
            "requests_equal": self.equal_requests(),
            "requests_failed": [{"request": v.request, "error": v.error} for v in self.failed],
            "positions": self.positions,
            "positions_by_prefill": self.by_prefill,
            "mismatches_total": len(self.mismatches),
            "mismatches_excused": len(self.mismatches) - len(self.counted),
            "mismatches_counted": len(self.counted),
            "excuse_margin": self.excuse_margin,
            "rate": self.rate if self.positions else None,
            "rate_interval_95": [low, high],
            "mismatches": [asdict(m) for m in self.mismatches],
            "verdicts": [{**asdict(v), "mismatches": len(v.mismatches)} for v in self.verdicts],
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Read what `to_json` gave; raise `SpecPilotError` when it is something else."""
        try:
            found = [Mismatch(**m) for m in row["mismatches"]]
            verdicts = [
                Verdict(**{**v, "mismatches": [m for m in found if m.request == v["request"]]}) for v in row["verdicts"]
            ]
            if any(len(v.mismatches) != w["mismatches"] for v, w in zip(verdicts, row["verdicts"], strict=True)):
                raise ValueError("mismatches do not add up")
            return cls(verdicts, float(row["excuse_margin"]))
        except (KeyError, TypeError, ValueError) as exc:
            raise SpecPilotError(f"not a token forcing report ({exc!r})", fix="force the tokens again") from exc
