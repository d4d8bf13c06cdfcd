"""Writes the report: `report.html`, which needs nothing from outside, and `report.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specpilot_sglang.eval.ab.durable import write_json
from specpilot_sglang.eval.files import write_whole
from specpilot_sglang.eval.report.page import data_uri, render, require_packages
from specpilot_sglang.eval.report.plots import Interval, intervals


def write_report(content: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write both files and return their paths.

    Raises:
        SpecPilotError: a package is missing, or a file cannot be written.
    """
    require_packages("the loop's report", extra="loop")
    plots = _plots(content)
    html = render(__package__, "loop.html.j2", {"what": content, "plots": plots})
    paths = [folder / "report.html", folder / "report.json"]
    write_whole(paths[0], html, fix="choose --out")
    write_json(paths[1], dict(content))
    return paths


def _plots(content: Mapping[str, Any]) -> list[dict[str, str]]:
    rows = [row for row in content["candidates"] if row["gain"] is not None]
    if not rows:
        return []
    drawn = [
        Interval(
            f"{row['round']}.{row['slot']} {row['direction']}",
            1 + (row["gain"] if row["confirmed"] is None else row["confirmed"]),
            float("nan") if row["lower"] is None else 1 + row["lower"],
            1 + (row["gain"] if row["confirmed"] is None else row["confirmed"]),
            3 if row["status"] == "accepted" else 0,
        )
        for row in rows
    ]
    caption = "Each judged candidate over its incumbent; the bar reaches down to the lower 95% bound. Green: accepted."
    return [{"image": data_uri(intervals(drawn, label="speed over incumbent")), "caption": caption}]
