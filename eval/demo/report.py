"""Writes the demonstration's result as JSON and as one HTML file without external links."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.demo.outcome import ArmOutcome, Outcome
from specpilot_sglang.eval.files import write_whole

_TEMPLATE = "report.html.j2"
_PACKAGES = ("gguf", "jinja2", "matplotlib")


def require_packages() -> None:
    """Raise `SpecPilotError` when a package that the demonstration needs is missing; call it before the servers."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        fix = "pip install 'specpilot-sglang[demo]'"
        raise SpecPilotError(f"the demonstration needs the packages {', '.join(missing)}", fix=fix)


def to_json(outcome: Outcome, provenance: Mapping[str, str], busy: str = "") -> dict[str, Any]:
    """Return everything that was measured as JSON values; `busy` is a warning about the speeds."""
    problems = outcome.problems()
    return {
        "accepted": not problems,
        "problems": problems,
        "rule": outcome.rule(),
        "dtype": outcome.dtype,
        "busy": busy,
        "arms": [_arm(a, outcome) for a in outcome.arms],
        "exact_float32": [_arm(a, outcome, speedups=False) for a in outcome.exact],
        "provenance": dict(provenance),
    }


def write(outcome: Outcome, document: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """Write `report.html` and `report.json`, the latter being `document`, into `folder` and return their paths."""
    page, data = folder / "report.html", folder / "report.json"
    write_whole(data, json.dumps(document, indent=1) + "\n", fix="choose --out")
    write_whole(page, html(outcome, document), fix="choose --out")
    return page, data


def html(outcome: Outcome, document: Mapping[str, Any]) -> str:
    """Return the report as HTML with its plot inside."""
    from jinja2 import Environment, StrictUndefined

    from specpilot_sglang.eval.demo.plot import draw

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["figure"] = figure
    source = (resources.files("specpilot_sglang.eval.demo") / _TEMPLATE).read_text(encoding="utf-8")
    plot = base64.b64encode(draw(outcome.arms, outcome.dtype)).decode()
    return environment.from_string(source).render(doc=document, plot=plot)


def figure(value: float | None, digits: int = 2) -> str:
    """Format a number for people; a dash when it is missing."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _arm(arm: ArmOutcome, outcome: Outcome, *, speedups: bool = True) -> dict[str, Any]:
    suites = [
        {
            "suite": s.suite,
            "requests": len(s.per_request),
            "tokens": s.tokens,
            "seconds": s.seconds,
            "tokens_per_s": _number(s.speed),
            "tokens_per_s_median": _number(s.median),
            "tokens_per_s_requests": s.per_request,
            "accept_length": _number(s.accept_length),
            "speedup_over_ar": _number(outcome.speedup(arm, s.suite)) if speedups else None,
        }
        for s in arm.suites()
    ]
    return {
        "name": arm.name,
        "label": arm.label,
        "command": arm.command,
        "start_s": arm.start_s,
        "bits_per_weight": arm.bits_per_weight(),
        "failed": [{"request": r.id, "error": r.error} for r in arm.failed()],
        "suites": suites,
        "forcing": arm.forcing.to_json() if arm.forcing else None,
        "attestation": arm.attestation,
        "server": dict(arm.server),
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
