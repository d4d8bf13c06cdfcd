"""Writes an experiment's document as JSON, as Markdown, and as one HTML file without external links."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.files import write_whole

_FIX = "choose another --out"


def write(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write `report.json` into `folder` and return the paths."""
    data = folder / "report.json"
    write_whole(data, json.dumps(document, indent=1) + "\n", fix=_FIX)
    return [data]


def read(folder: Path) -> dict[str, Any]:
    """Return the document that `write` left; raise `SpecPilotError` when there is none."""
    path = folder / "report.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return dict(value)
    except (OSError, ValueError, TypeError) as exc:
        raise SpecPilotError(f"no report of a finished experiment ({exc})", where=path, fix="run it first") from exc
