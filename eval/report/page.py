"""Renders templates: HTML pages that need nothing from outside, and markdown."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from importlib import resources
from importlib.util import find_spec
from typing import Any

from specpilot_sglang.errors import SpecPilotError

#: Every page begins with it; see `base.html.j2`.
BASE = "base.html.j2"


def require_packages(what: str, *, extra: str = "demo") -> None:
    """Raise `SpecPilotError` when a package that reports need is missing; call it before the servers."""
    missing = [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]
    if missing:
        fix = f"pip install 'specpilot-sglang[{extra}]'"
        raise SpecPilotError(f"{what} needs the packages {', '.join(missing)}", fix=fix)


def render(package: str, template: str, context: Mapping[str, Any]) -> str:
    """Return the template `template` of `package` filled with `context`.

    Names ending in `.html.j2` are escaped and may extend `base.html.j2`; an unknown variable raises.

    Filters: `figure(digits)` writes a number or a dash, `percent(digits)` likewise, `compact` prints JSON.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    def load(name: str) -> str:
        place = __package__ if name == BASE else package
        return (resources.files(place) / name).read_text(encoding="utf-8")

    environment = Environment(
        loader=FunctionLoader(load),
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(figure=figure, percent=percent, compact=compact, cell=cell)
    return environment.get_template(template).render(**context)


def figure(value: float | None, digits: int = 2) -> str:
    """Format a number for people; a dash when it is missing."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def percent(value: float | None, digits: int = 2) -> str:
    """Format a share as a percentage; a dash when it is missing."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.{digits}f}%"


def compact(value: Any) -> str:
    """Return `value` as indented JSON."""
    return json.dumps(value, indent=1, default=str)


def cell(value: Any) -> str:
    """Return text for one cell of a markdown table."""
    return " ".join(str(value).split()).replace("|", "\\|")


def data_uri(svg: bytes) -> str:
    """Return an SVG image as a `data:` address."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def plain(value: Any) -> Any:
    """Return `value` with every NaN and infinity as None: strict JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
