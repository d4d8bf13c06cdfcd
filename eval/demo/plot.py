"""Draws speed and accept length by suite and server as one PNG."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from specpilot_sglang.eval.demo.outcome import ArmOutcome

#: Okabe-Ito colours: told apart by people with any colour vision.
_COLOURS = ("#7f7f7f", "#0072b2", "#d55e00", "#009e73")


def draw(arms: Sequence[ArmOutcome], dtype: str) -> bytes:
    """Return a PNG: left output tokens a second (dots are requests), right tokens a verify step."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (speed, accept) = plt.subplots(1, 2, figsize=(10, 3.8), width_ratios=(3, 2), layout="constrained")
    try:
        _speed_bars(speed, arms)
        _accept_bars(accept, arms)
        speed.set_title(f"Speed, one request at a time, {dtype}", fontsize=10)
        accept.set_title("Accept length", fontsize=10)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130)
        return buffer.getvalue()
    finally:
        plt.close(figure)


def _speed_bars(axis: Any, arms: Sequence[ArmOutcome]) -> None:
    for index, arm in enumerate(arms):
        for place, suite in enumerate(arm.suites()):
            x = _position(place, index, len(arms))
            label = arm.label if place == 0 else None
            axis.bar(x, suite.speed, _width(len(arms)), color=_COLOURS[index % 4], label=label, alpha=0.75)
            spread = [x] * len(suite.per_request)
            axis.scatter(spread, suite.per_request, s=9, color="black", alpha=0.6, zorder=3, linewidths=0)
    _finish(axis, arms, "output tokens / s")


def _accept_bars(axis: Any, arms: Sequence[ArmOutcome]) -> None:
    for index, arm in enumerate(arms):
        for place, suite in enumerate(arm.suites()):
            if not math.isnan(suite.accept_length):
                x = _position(place, index, len(arms))
                bars = axis.bar(x, suite.accept_length, _width(len(arms)), color=_COLOURS[index % 4], alpha=0.75)
                axis.bar_label(bars, fmt="%.2f", fontsize=7)
    axis.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    _finish(axis, arms, "tokens / verify step")


def _finish(axis: Any, arms: Sequence[ArmOutcome], label: str) -> None:
    names = [suite.suite for suite in arms[0].suites()]
    axis.set_xticks(range(len(names)), names)
    axis.set_xlim(-0.5, len(names) - 0.5)
    axis.set_ylabel(label)
    axis.spines[["top", "right"]].set_visible(False)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, frameon=False)


def _width(arms: int) -> float:
    return 0.8 / arms


def _position(place: int, index: int, arms: int) -> float:
    return place + (index - (arms - 1) / 2) * _width(arms)
