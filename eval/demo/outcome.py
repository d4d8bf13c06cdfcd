"""What the demonstration found: per server and suite, and whether the plugin's answers hold."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specpilot_sglang.eval.acceptance import by_suite
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.records import Request

#: How much higher than stock's the plugin's mismatch rate may be in a low-precision dtype (0.5 points).
ALLOWED_EXCESS = 0.005


@dataclass(frozen=True)
class SuiteSpeed:
    """Speed of one server on one suite at one request at a time.

    Attributes:
        suite: suite name.
        tokens: output tokens.
        seconds: wall time of all requests, prompts included.
        per_request: output tokens a second of each request.
        accept_length: tokens a verify step; NaN for plain decoding.
    """

    suite: str
    tokens: int
    seconds: float
    per_request: list[float]
    accept_length: float

    @property
    def speed(self) -> float:
        """Output tokens a second over the whole suite; NaN when nothing was answered."""
        return self.tokens / self.seconds if self.seconds else math.nan

    @property
    def median(self) -> float:
        """Median of the requests' speeds."""
        return statistics.median(self.per_request) if self.per_request else math.nan


@dataclass(frozen=True)
class ArmOutcome:
    """One server's measurements.

    Attributes:
        name: arm name.
        label: arm label.
        command: full command line.
        start_s: seconds from launch to the first answer; on a CPU that may span the last server's token forcing.
        requests: timed requests.
        forcing: token forcing against AR; None for AR itself.
        attestation: `GET /specpilot`; None without the plugin.
        server: what the server says about itself.
    """

    name: str
    label: str
    command: list[str]
    start_s: float
    requests: Sequence[Request]
    forcing: ForcingReport | None = None
    attestation: Mapping[str, Any] | None = None
    server: Mapping[str, Any] = field(default_factory=dict)

    def suites(self) -> list[SuiteSpeed]:
        """Return speed and accept length by suite, in the order they ran."""
        accept = {a.suite: a.length for a in by_suite(self.requests)}
        return [self._suite(suite, accept.get(suite, math.nan)) for suite in dict.fromkeys(self._names())]

    def bits_per_weight(self) -> float:
        """Return stored bits a weight of the quantised layers by the attestation; 16 or 32 where nothing is packed."""
        return packed_bits(self.attestation) or {"float32": 32.0}.get(str(self.server.get("dtype")), 16.0)

    def failed(self) -> list[Request]:
        """Return the timed requests that failed."""
        return [r for r in self.requests if r.error]

    def _names(self) -> list[str]:
        return [r.suite for r in self.requests]

    def _suite(self, suite: str, accept: float) -> SuiteSpeed:
        rows = [r for r in self.requests if r.suite == suite and not r.error]
        speeds = [len(r.output_ids) / r.wall_s for r in rows]
        return SuiteSpeed(suite, sum(len(r.output_ids) for r in rows), sum(r.wall_s for r in rows), speeds, accept)


@dataclass(frozen=True)
class Outcome:
    """The whole demonstration; `exact` holds the float32 pass where one was made."""

    arms: Sequence[ArmOutcome]
    dtype: str
    exact: Sequence[ArmOutcome] = ()

    def arm(self, name: str) -> ArmOutcome | None:
        """Return the arm called `name`, if it ran."""
        return next((a for a in self.arms if a.name == name), None)

    def speedup(self, arm: ArmOutcome, suite: str) -> float:
        """Return an arm's speed on a suite over AR's; NaN when either is missing."""
        base = self.arm("ar")
        pair = [{s.suite: s.speed for s in a.suites()}.get(suite, math.nan) for a in (arm, base) if a]
        return pair[0] / pair[1] if len(pair) == 2 else math.nan

    def problems(self) -> list[str]:
        """Return why the plugin's answers are not accepted; empty when they are."""
        found = [f"{a.label}: {len(a.failed())} requests failed" for a in [*self.arms, *self.exact] if a.failed()]
        plugin, stock = self.arm("specpilot"), self.arm("stock")
        if plugin is None or plugin.forcing is None:
            return [*found, "the plugin was not measured"]
        found += attestation_problems(plugin.attestation)
        found += _rate_problems(plugin.forcing, stock.forcing if stock else None, exact=self.dtype == "float32")
        for arm in self.exact:
            if arm.forcing is not None:
                found += [f"float32 pass: {p}" for p in _rate_problems(arm.forcing, None, exact=True)]
        return found

    def rule(self) -> str:
        """Return the acceptance rule in words."""
        if self.dtype == "float32":
            return "float32: no mismatch against AR, except where both tokens are within the excuse margin"
        return (
            f"{self.dtype}: a block of rows and a single row round differently, so near ties may fall either way; "
            f"the plugin's mismatch rate may exceed stock's by at most {ALLOWED_EXCESS:.1%} of positions"
        )


def _rate_problems(plugin: ForcingReport, stock: ForcingReport | None, *, exact: bool) -> list[str]:
    found = [f"{v.request} could not be judged: {v.error}" for v in plugin.failed]
    if not plugin.positions:
        return [*found, "no position was judged"]
    if exact and plugin.counted:
        found.append(f"{len(plugin.counted)} mismatches against AR")
    allowed = (stock.rate if stock and stock.positions else 0.0) + ALLOWED_EXCESS
    if not exact and plugin.rate > allowed:
        found.append(f"mismatch rate {plugin.rate:.2%} is above {allowed:.2%}")
    return found


def attestation_problems(attestation: Mapping[str, Any] | None) -> list[str]:
    """Return why an attestation does not show that the plugin really ran, on every rank and without tricks."""
    if not attestation:
        return ["the plugin's server does not attest"]
    found = []
    if not attestation.get("consistent", True):
        found.append("the plugin's ranks attest different things")
    if attestation.get("simulated_acceptance"):
        found.append("acceptance is simulated")
    hits = [rank.get("hits") for rank in attestation.get("ranks", []) if isinstance(rank, Mapping)]
    if any(not sum((counts or {}).values()) for counts in hits) or not hits:
        found.append("a rank's hot-path counters are zero: the plugin was loaded but did not run")
    return found


def packed_bits(attestation: Mapping[str, Any] | None) -> float | None:
    """Return the bits per weight that the first rank attests for W12, if any."""
    try:
        value = (attestation or {})["ranks"][0]["mechanisms"]["w12"]["bits_per_weight"]
        return float(value) if value else None
    except (KeyError, IndexError, TypeError, ValueError):
        return None
