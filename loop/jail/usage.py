"""Tokens, calls and money that agents spend, summed in a ledger that survives a kill, and capped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.durable import append_line, read_lines


class Caps(BaseModel):
    """What one agent may spend; None is no cap."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    calls: int | None = Field(default=200, ge=0, description="Requests to the model.")
    tokens: int | None = Field(default=2_000_000, ge=0, description="Tokens in and out together.")
    usd: float | None = Field(default=None, ge=0, description="Money; needs both prices.")
    usd_per_mtok_in: float | None = Field(default=None, ge=0, description="Price of a million tokens read.")
    usd_per_mtok_out: float | None = Field(default=None, ge=0, description="Price of a million tokens written.")

    def check(self) -> None:
        """Raise `SpecPilotError` when money is capped without prices."""
        if self.usd is not None and (self.usd_per_mtok_in is None or self.usd_per_mtok_out is None):
            fix = "add agent.caps.usd_per_mtok_in and usd_per_mtok_out from your provider's price list"
            raise SpecPilotError("a cap on money needs prices", where="agent.caps.usd", fix=fix)


@dataclass(frozen=True)
class Spent:
    """What was spent: requests, tokens read and written, and money when prices are known."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float | None = None

    def over(self, caps: Caps) -> str:
        """Return which cap is reached, empty when none is."""
        tokens = self.tokens_in + self.tokens_out
        checks = (("calls", self.calls, caps.calls), ("tokens", tokens, caps.tokens), ("usd", self.usd, caps.usd))
        return next((name for name, now, most in checks if most is not None and now is not None and now >= most), "")


class Ledger:
    """A file with one line a request; only the proxy writes it.

    Args:
        path: the file.
        caps: prices, for `spent`.
    """

    def __init__(self, path: Path, caps: Caps) -> None:
        self.path, self._caps = path, caps

    def add(self, tokens_in: int, tokens_out: int, status: int) -> None:
        """Record one answered request."""
        append_line(self.path, {"in": tokens_in, "out": tokens_out, "status": status})

    def spent(self) -> Spent:
        """Return the sum."""
        rows = read_lines(self.path)
        total_in, total_out = (sum(int(row.get(name, 0)) for row in rows) for name in ("in", "out"))
        price_in, price_out = self._caps.usd_per_mtok_in, self._caps.usd_per_mtok_out
        known = price_in is not None and price_out is not None
        usd = (total_in * (price_in or 0.0) + total_out * (price_out or 0.0)) / 1e6 if known else None
        return Spent(len(rows), total_in, total_out, usd)
