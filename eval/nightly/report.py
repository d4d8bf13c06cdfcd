"""Writes a night as JSON, HTML and markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specpilot_sglang.eval.files import write_whole
from specpilot_sglang.eval.report import plots
from specpilot_sglang.eval.report.page import data_uri, render

_FIX = "choose another `out:`"
_PACKAGE = "specpilot_sglang.eval.nightly"


def write(document: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Write `report.json`, `report.html` and `report.md` into `folder` and return their paths by suffix."""
    texts = {
        "json": json.dumps(document, indent=1, allow_nan=False) + "\n",
        "html": html(document),
        "md": markdown(document),
    }
    paths = {suffix: folder / f"report.{suffix}" for suffix in texts}
    for suffix, text in texts.items():
        write_whole(paths[suffix], text, fix=_FIX)
    return paths


def html(document: Mapping[str, Any]) -> str:
    """Return the page; its plots are inside it."""
    images = {d["name"]: _plots(d) for d in document["deployments"]}
    return render(_PACKAGE, "nightly.html.j2", {"doc": document, "plots": images, **_labels()})


def markdown(document: Mapping[str, Any]) -> str:
    """Return the summary for a CI job or a mail."""
    return render(_PACKAGE, "nightly.md.j2", {"doc": document, **_labels()})


def _labels() -> dict[str, Any]:
    classes = {"ok": "ok", "regression": "bad", "not judged": "soft", "note": "soft"}
    return {"css": classes, "mean": _mean, "labels": {"ar": "AR", "stock": "stock", "specpilot": "specpilot"}}


def _plots(deployment: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return address, text and caption of every plot for which there are figures."""
    found = [
        _speed(deployment),
        _histogram(deployment),
        _time(deployment),
        _cost(deployment),
        _history(deployment, "speedup.", "ratio of tok/s", "Speed-ups over the runs; dashed: change points."),
        _history(
            deployment, "accept_length.specpilot", "tokens a verify step", "Accept length of the plugin over the runs."
        ),
    ]
    return [plot for plot in found if plot is not None]


def _plot(svg: bytes, alt: str, caption: str) -> dict[str, str]:
    return {"src": data_uri(svg), "alt": alt, "caption": caption}


def _speed(deployment: Mapping[str, Any]) -> dict[str, str] | None:
    rows = deployment["comparisons"]
    if not rows:
        return None
    colours = {("stock", "ar"): 1, ("specpilot", "ar"): 2, ("specpilot", "stock"): 3}
    drawn = []
    for c in rows:
        value, low, high = (math.nan if c[key] is None else float(c[key]) for key in ("value", "low", "high"))
        label = f"{c['arm']} / {_base(c['base'])}\n{c['concurrency']} in flight"
        drawn.append(plots.Interval(label, value, low, high, colours[c["arm"], c["base"]]))
    caption = "Speed-up over AR and over stock, output tokens a second, with intervals over launch pairs."
    return _plot(plots.intervals(drawn, label="ratio of output tok/s"), "Speed-up with intervals", caption)


def _base(name: str) -> str:
    return {"ar": "AR"}.get(name, name)


def _histogram(deployment: Mapping[str, Any]) -> dict[str, str] | None:
    groups = {arm["label"]: arm["histogram"] for arm in deployment["arms"] if arm["histogram"]}
    if not groups:
        return None
    svg = plots.histogram(groups, label="drafted tokens accepted in a verify step", unit="% of verify steps")
    return _plot(svg, "Accept-length histogram", "Accepted drafts a verify step; the step emits one token more.")


def _time(deployment: Mapping[str, Any]) -> dict[str, str] | None:
    rows = {}
    for arm in deployment["arms"]:
        for load in arm["loads"]:
            if load["time"]:
                label = f"{arm['label']}, {load['concurrency']} in flight"
                prompt, decode = 1e3 * load["time"]["prompt_s"], 1e3 * load["time"]["decode_s"]
                rows[label] = {"prompt (to the first token)": prompt, "decode": decode}
    if not rows:
        return None
    caption = "Where the time goes: a request's milliseconds for each output token."
    return _plot(plots.stacked(rows, label="ms an output token"), "Where the time goes", caption)


def _cost(deployment: Mapping[str, Any]) -> dict[str, str] | None:
    cost = deployment.get("cost")
    if not cost:
        return None
    rows = {}
    for term in cost["terms"]:
        known = term["ceiling_s"] is not None
        parts = {
            "ceiling": term["ceiling_s"] if known else 0.0,
            "kernel gap": term["gap_s"] if known and term["timed"] else 0.0,
            "overhead": term["overhead_s"],
            "gap and overhead": term["gap_s"] if known and not term["timed"] else 0.0,
            "not split": 0.0 if known else term["seconds"] - term["overhead_s"],
        }
        rows[f"{term['name']} ({term['batch']} x {term['width']})"] = {k: 1e3 * max(0.0, v) for k, v in parts.items()}
    caption = f"Where a step's time goes, largest gap first; cost table {cost['name']}"
    caption += "".join(f"; {label}" for label in cost["labels"]) + "."
    return _plot(plots.stacked(_used(rows), label="ms"), "Where a step's time goes", caption)


def _used(rows: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    empty = [part for part in next(iter(rows.values())) if not any(row[part] for row in rows.values())]
    return {name: {part: value for part, value in row.items() if part not in empty} for name, row in rows.items()}


def _history(deployment: Mapping[str, Any], prefix: str, label: str, caption: str) -> dict[str, str] | None:
    chosen = [s for s in deployment["history"] if s["metric"].startswith(prefix)][:6]
    if not chosen:
        return None
    longest = max(chosen, key=lambda s: len(s["points"]))
    lines = [
        plots.Line(
            s["metric"].removeprefix("speedup."), [p["value"] for p in s["points"]], [c["index"] for c in s["changes"]]
        )
        for s in chosen
    ]
    ticks = [p["started_at"][5:10] for p in longest["points"]]
    return _plot(plots.history(lines, label=label, ticks=ticks), caption, caption)


def _mean(values: list[float | None]) -> float:
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known else math.nan
