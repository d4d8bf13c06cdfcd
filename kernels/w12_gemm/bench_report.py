"""What a benchmark run says: ratios to the best BF16 kernel, geometric means, bandwidth, JSON and plots."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specpilot_sglang.eval.files import write_whole
from specpilot_sglang.kernels.w12_gemm.bench import BF16, Timing

#: Bytes of a BF16 weight from which a shape counts as large, and numbers of tokens the means are over.
LARGE, FEW_TOKENS = 50e6, 16
#: TFLOP/s of a large BF16 product on an H200 (769 to 798 were measured on random data).
PEAK = 800.0

Cells = dict[tuple[int, int, int], dict[str, Timing]]


@dataclass(frozen=True)
class Report:
    """All timings of one run with what is needed to read them.

    Attributes:
        about: GPU, versions, date, command, share of escapes.
        copy: terabytes a second of a device-to-device copy, read plus written, in the same run.
        timings: every cell.
    """

    about: Mapping[str, Any]
    copy: float
    timings: list[Timing]

    def cells(self) -> Cells:
        """Return timings by shape and tokens, then by name."""
        result: Cells = {}
        for t in self.timings:
            result.setdefault((t.n, t.k, t.tokens), {})[t.name] = t
        return result

    def ratios(self, name: str = "w12") -> dict[tuple[int, int], dict[int, float]]:
        """Return time of the best BF16 kernel over time of `name`, by shape and tokens."""
        result: dict[tuple[int, int], dict[int, float]] = {}
        for (n, k, m), cell in self.cells().items():
            if name in cell:
                result.setdefault((n, k), {})[m] = best(cell) / cell[name].microseconds
        return result

    def mean(self, name: str, tokens: Iterable[int]) -> tuple[float, float]:
        """Return geometric mean and least of the ratios over large shapes; NaN where nothing was measured."""
        wanted = set(tokens)
        values = [
            ratio
            for (n, k), row in self.ratios(name).items()
            if 2 * n * k > LARGE and n * k != 5120 * 6144
            for m, ratio in row.items()
            if m in wanted
        ]
        if not values:
            return math.nan, math.nan
        return math.exp(sum(map(math.log, values)) / len(values)), min(values)

    def save(self, path: Path, *, complete: bool = True) -> None:
        """Write everything as JSON, in one step: a run that is stopped leaves a whole file.

        Args:
            path: where to; `complete` says there whether the run came to its end.
        """
        cells = self.cells()
        rows = [
            asdict(t)
            | {
                "terabytes_per_second": t.terabytes_per_second,
                "share_of_copy": t.terabytes_per_second / self.copy,
                "ratio": best(cells[t.n, t.k, t.tokens]) / t.microseconds,
            }
            for t in self.timings
        ]
        body = {**self.about, "complete": complete, "copy_terabytes_per_second": self.copy, "rows": rows}
        write_whole(path, json.dumps(body, indent=1) + "\n", fix="choose another folder")


def best(cell: Mapping[str, Timing]) -> float:
    """Return microseconds of the fastest BF16 kernel."""
    return min(cell[name].microseconds for name in BF16 if name in cell)


def plot_ratios(report: Report, path: Path) -> None:
    """Plot speed against the best BF16 kernel over the number of tokens, one line a shape."""
    figure, axes = _figure()
    for name, style in (("w12", "-"), ("nested8", ":")):
        for (n, k), row in report.ratios(name).items():
            label = f"{n}x{k}" if name == "w12" else None
            axes.plot(list(row), list(row.values()), style, marker=".", label=label, color=_color(n, k))
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="tokens", ylabel="times the best BF16 kernel (solid W12, dotted 8-bit view)")
    axes.set_title(f"W12 GEMM, {report.about['gpu']}, {report.about['date']}, random weights")
    axes.legend(fontsize=7, ncols=2)
    figure.savefig(path, dpi=150, bbox_inches="tight")


def plot_roofline(report: Report, path: Path) -> None:
    """Plot achieved rate over operations a weight byte, against memory at the copy's rate."""
    figure, axes = _figure()
    for name, marker in (("linear", "x"), ("w12", "o"), ("nested8", "^")):
        timings = [t for t in report.timings if t.name == name and 2 * t.n * t.k > LARGE]
        operations = [2.0 * t.n * t.k * t.tokens for t in timings]
        intensity = [o / t.stream_bytes for o, t in zip(operations, timings, strict=True)]
        rate = [o / t.microseconds / 1e6 for o, t in zip(operations, timings, strict=True)]
        axes.scatter(intensity, rate, marker=marker, s=18, label=name)
    axes.plot(*roof(report.copy), color="black", linewidth=0.8)
    axes.plot([PEAK / report.copy] * 2, [1, PEAK], ":", color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="operations a byte of weights", ylabel="TFLOP/s")
    axes.set_title(f"Roofline at the copy's {report.copy:.2f} TB/s (large weights)")
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")


def roof(copy: float) -> tuple[list[float], list[float]]:
    """Return operations a byte, and the TFLOP/s that memory at `copy` TB/s and the tensor cores allow there.

    The corner is a point of its own: on logarithmic axes a line from end to end would pass below it.
    """
    intensity = [0.5, PEAK / copy, 1e4]
    return intensity, [min(copy * each, PEAK) for each in intensity]


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5))
    return figure, figure.add_subplot()


def _color(n: int, k: int) -> tuple[float, float, float]:
    from colorsys import hsv_to_rgb

    return hsv_to_rgb((n * 0.37 + k * 0.61) % 97 / 97, 0.8, 0.8)
