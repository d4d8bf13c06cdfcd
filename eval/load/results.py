"""What one load run gave: every request's raw timings and text, and what was seen of the server around it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.files import write_whole

FORMAT = 1


@dataclass(frozen=True)
class Sample:
    """One request as the benchmark client saw it; times in seconds.

    Attributes:
        id: id of the suite item it came from.
        suite: suite name.
        prompt_tokens: tokens of the prompt, chat template included.
        output_tokens: tokens the server generated, an end token included.
        text: the answer.
        ttft_s: from sending to the first token; 0 when it failed.
        itl_s: gaps between arrivals of tokens.
        latency_s: from sending to the last token.
        error: why it failed; empty when it did not.
    """

    id: str
    suite: str
    prompt_tokens: int
    output_tokens: int
    text: str
    ttft_s: float
    itl_s: tuple[float, ...]
    latency_s: float
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the sample as JSON values."""
        return {**asdict(self), "itl_s": list(self.itl_s)}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Self:
        """Read what `to_json` gave; unknown keys are left out, missing ones raise TypeError."""
        known = _known(cls, row)
        return cls(**{**known, "itl_s": tuple(float(value) for value in known["itl_s"])})


@dataclass(frozen=True)
class LoadResult:
    """One workload against one server.

    Attributes:
        samples: one a request, in the workload's order.
        duration_s: seconds in which the client had requests in flight, by the client's clock, checked against ours.
        concurrency: requests in flight.
        verify_steps: verify steps of all requests; None when the server decoded plainly.
        accept_length: tokens a verify step over all requests, as SGLang counts; None when it decoded plainly.
        server_before: `/server_info` before the first timed request.
        server_after: the same after the last one.
        attestation_before: the plugin's `GET /specpilot`; None on a server without the plugin.
        attestation_after: the same after the last request.
        environment: versions, GPU, clocks, throttle reasons, environment variables that matter, provenance.
        command: the benchmark client's command line.
    """

    samples: tuple[Sample, ...]
    duration_s: float
    concurrency: int
    verify_steps: int | None
    accept_length: float | None
    server_before: dict[str, Any]
    server_after: dict[str, Any]
    attestation_before: dict[str, Any] | None
    attestation_after: dict[str, Any] | None
    environment: dict[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    @property
    def good(self) -> tuple[Sample, ...]:
        """Samples that did not fail."""
        return tuple(s for s in self.samples if not s.error)

    @property
    def output_tokens(self) -> int:
        """Generated tokens of all good samples."""
        return sum(s.output_tokens for s in self.good)

    @property
    def output_tok_s(self) -> float:
        """Generated tokens a second over all requests; NaN without a duration."""
        return self.output_tokens / self.duration_s if self.duration_s > 0 else math.nan

    @property
    def ttft_p50_s(self) -> float:
        """Median time to the first token."""
        return quantile([s.ttft_s for s in self.good], 0.5)

    @property
    def ttft_p99_s(self) -> float:
        """99th percentile of the time to the first token."""
        return quantile([s.ttft_s for s in self.good], 0.99)

    @property
    def itl_p50_s(self) -> float:
        """Median time between tokens, all requests pooled; see `gaps_per_token`."""
        return quantile([gap for s in self.good for gap in gaps_per_token(s)], 0.5)

    @property
    def itl_p99_s(self) -> float:
        """99th percentile of the time between tokens, all requests pooled; see `gaps_per_token`."""
        return quantile([gap for s in self.good for gap in gaps_per_token(s)], 0.99)

    @property
    def latency_p99_s(self) -> float:
        """99th percentile of the whole request."""
        return quantile([s.latency_s for s in self.good], 0.99)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        samples = [s.to_json() for s in self.samples]
        return {"format": FORMAT, **plain, "samples": samples, "command": list(self.command)}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Self:
        """Read what `to_json` gave.

        Raises:
            SpecPilotError: it is no load result of this format.
        """
        if not isinstance(row, dict) or row.get("format") != FORMAT:
            raise SpecPilotError(f"not a load result of format {FORMAT}", fix="measure it again")
        try:
            samples = tuple(Sample.from_json(s) for s in row["samples"])
            return cls(**{**_known(cls, row), "samples": samples, "command": tuple(row.get("command") or ())})
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise SpecPilotError(f"not a load result ({exc!r})", fix="measure it again") from exc

    def save(self, path: Path) -> None:
        """Write the result to `path`; the file appears only when complete."""
        write_whole(path, json.dumps(self.to_json(), default=str) + "\n", fix="choose another file")


def load_result(path: Path) -> LoadResult:
    """Read a saved load result; raise `SpecPilotError` naming the file when it is not one."""
    try:
        return LoadResult.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as exc:
        raise SpecPilotError(f"cannot read the load result ({exc})", where=path, fix="measure it again") from exc
    except SpecPilotError as exc:
        raise SpecPilotError(exc.what, where=path, fix=exc.fix) from exc


def gaps_per_token(sample: Sample) -> list[float]:
    """Return the gaps between a request's arrivals, in seconds a token that an arrival brings on average.

    A speculative server sends the tokens of a verify step at once. Gaps between arrivals alone would call a server
    slower that accepts more tokens a step; SGLang's own inter-token latency is divided by an arrival's tokens too.
    """
    tokens = max(1.0, (sample.output_tokens - 1) / len(sample.itl_s)) if sample.itl_s else 1.0
    return [gap / tokens for gap in sample.itl_s]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the `share` quantile with linear interpolation; NaN without values."""
    if not values:
        return math.nan
    rows = sorted(values)
    place = share * (len(rows) - 1)
    low = math.floor(place)
    high = min(low + 1, len(rows) - 1)
    return rows[low] + (place - low) * (rows[high] - rows[low])


def _known(cls: Any, row: dict[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(cls)}
    return {key: value for key, value in row.items() if key in names}
