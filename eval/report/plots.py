"""Draws the plots of the reports as SVG, in colours that people with any colour vision tell apart."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Okabe-Ito.
COLOURS = ("#7f7f7f", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True)
class Interval:
    """A value with its interval; NaN bounds draw the value alone. `group` chooses the colour."""

    label: str
    value: float
    low: float
    high: float
    group: int = 0


@dataclass(frozen=True)
class Line:
    """A figure over runs: values in order, with the indices at which its level changed."""

    label: str
    values: Sequence[float]
    changes: Sequence[int] = ()


def intervals(rows: Sequence[Interval], *, label: str, reference: float = 1.0) -> bytes:
    """Draw one row an interval, the first on top, and a line at `reference`."""

    def draw(axis: Any) -> None:
        axis.axvline(reference, color="black", linewidth=0.8, linestyle=":")
        for y, row in enumerate(rows):
            colour = COLOURS[row.group % len(COLOURS)]
            if not math.isnan(row.low):
                axis.plot([row.low, row.high], [y, y], color=colour, linewidth=2.5, solid_capstyle="butt")
            axis.plot([row.value], [y], "o", color=colour, markersize=7)
            axis.annotate(
                f"{row.value:.3g}x", (row.value, y), textcoords="offset points", xytext=(0, 7), ha="center", fontsize=9
            )
        axis.set_yticks(range(len(rows)), [row.label for row in rows])
        axis.set_ylim(len(rows) - 0.4, -0.7)
        axis.set_xlabel(label)

    return _svg(draw, height=1.2 + 0.48 * len(rows))


def histogram(groups: Mapping[str, Sequence[int]], *, label: str, unit: str) -> bytes:
    """Draw the share of each count 0, 1, 2, ... for every group side by side."""
    width = 0.8 / max(1, len(groups))

    def draw(axis: Any) -> None:
        for index, (name, counts) in enumerate(groups.items()):
            total = sum(counts) or 1
            places = [i + (index - (len(groups) - 1) / 2) * width for i in range(len(counts))]
            shares = [100 * c / total for c in counts]
            axis.bar(places, shares, width, color=COLOURS[(index + 1) % len(COLOURS)], label=name, alpha=0.85)
        axis.set_xticks(range(max((len(c) for c in groups.values()), default=0)))
        axis.set_xlabel(label)
        axis.set_ylabel(unit)
        axis.legend(fontsize=9, frameon=False)

    return _svg(draw)


def stacked(rows: Mapping[str, Mapping[str, float]], *, label: str) -> bytes:
    """Draw one horizontal bar a row, made of its named parts, the first row on top."""
    parts = list(dict.fromkeys(part for row in rows.values() for part in row))

    def draw(axis: Any) -> None:
        starts = [0.0] * len(rows)
        for index, part in enumerate(parts):
            values = [row.get(part, 0.0) for row in rows.values()]
            axis.barh(list(rows), values, left=starts, color=COLOURS[index % len(COLOURS)], label=part, height=0.6)
            starts = [a + b for a, b in zip(starts, values, strict=True)]
        for y, total in enumerate(starts):
            axis.annotate(f" {total:.3g}", (total, y), va="center", fontsize=9)
        axis.invert_yaxis()
        axis.margins(x=0.12)
        axis.set_xlim(left=0)
        axis.set_xlabel(label)
        axis.legend(fontsize=9, frameon=False, ncols=min(3, len(parts)), loc="lower center", bbox_to_anchor=(0.5, 1.0))

    return _svg(draw, height=1.6 + 0.45 * len(rows))


def history(lines: Sequence[Line], *, label: str, ticks: Sequence[str]) -> bytes:
    """Draw figures over runs; a change of level is a vertical line in the figure's colour."""

    def draw(axis: Any) -> None:
        for index, line in enumerate(lines):
            colour = COLOURS[(index + 1) % len(COLOURS)]
            places = range(len(ticks) - len(line.values), len(ticks))
            axis.plot(places, line.values, "o-", color=colour, label=line.label, markersize=4, linewidth=1.3)
            for change in line.changes:
                axis.axvline(places[change] - 0.5, color=colour, linewidth=1.2, linestyle="--")
        step = max(1, math.ceil(len(ticks) / 6))
        axis.set_xticks(range(0, len(ticks), step), ticks[::step])
        axis.set_xlim(-0.6, max(len(ticks) - 0.4, 0.6))
        axis.set_ylabel(label)
        # Above the axes: inside, it would hide some line on some night.
        axis.legend(fontsize=8, frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))

    return _svg(draw, height=3.0 + 0.2 * math.ceil(len(lines) / 2))


def _svg(draw: Callable[[Any], None], *, height: float = 3.2) -> bytes:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    # A narrow canvas: on a telephone's 400 pixels the text must still be read.
    with mpl.rc_context({"font.size": 10, "svg.hashsalt": "specpilot"}):
        canvas, axis = plt.subplots(figsize=(5.6, height), layout="constrained")
        try:
            draw(axis)
            axis.spines[["top", "right"]].set_visible(False)
            buffer = io.BytesIO()
            canvas.savefig(buffer, format="svg", metadata={"Date": None})
            return buffer.getvalue()
        finally:
            plt.close(canvas)
