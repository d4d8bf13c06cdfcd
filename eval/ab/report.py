"""Writes an experiment's document as JSON, as Markdown, and as one HTML file without external links."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.files import write_whole
from specpilot_sglang.eval.report import plots
from specpilot_sglang.eval.report.page import data_uri, render

_FIX = "choose another --out"
_PACKAGE = "specpilot_sglang.eval.ab"


def write(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write `report.json`, `report.html` and `report.md` into `folder` and return their paths."""
    texts = {
        "report.json": json.dumps(document, indent=1, allow_nan=False) + "\n",
        "report.html": html(document),
        "report.md": markdown(document),
    }
    for name, text in texts.items():
        write_whole(folder / name, text, fix=_FIX)
    return [folder / name for name in texts]


def html(document: Mapping[str, Any]) -> str:
    """Return the page with its plot inside."""
    image = data_uri(_plot(document)) if document["blocks"] else ""
    return render(_PACKAGE, "report.html.j2", {"doc": document, "plot": image, "gain": _gain})


def markdown(document: Mapping[str, Any]) -> str:
    """Return the summary for a pull request or a mail."""
    return render(_PACKAGE, "report.md.j2", {"doc": document, "gain": _gain})


def read(folder: Path) -> dict[str, Any]:
    """Return the document that `write` left; raise `SpecPilotError` when there is none."""
    path = folder / "report.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return dict(value)
    except (OSError, ValueError, TypeError) as exc:
        raise SpecPilotError(f"no report of a finished experiment ({exc})", where=path, fix="run it first") from exc


def _plot(document: Mapping[str, Any]) -> bytes:
    """Draw each block's speed ratio, and the mean with its one-sided lower bound where there is a decision."""
    rows = [
        plots.Interval(f"block {row['index']}", _ratio(row["log_ratio"]), math.nan, math.nan)
        for row in document["blocks"]
    ]
    decision = document.get("decision")
    if decision:
        mean, low = _ratio(decision["mean"]), _ratio(decision["lower"])
        rows.append(plots.Interval("mean, lower bound", mean, low, mean, 1 if document["accepted"] else 2))
    label = f"tok/s of {document['arms'][1]} over {document['arms'][0]}"
    return plots.intervals(rows, label=label)


def _ratio(log_ratio: float | None) -> float:
    return math.nan if log_ratio is None else math.exp(log_ratio)


def _gain(log_ratio: float | None, digits: int = 2) -> str:
    return "–" if log_ratio is None else f"{100 * math.expm1(log_ratio):+.{digits}f}%"
