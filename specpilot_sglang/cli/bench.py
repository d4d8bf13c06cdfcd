"""`specpilot bench` subcommands: gemm."""

from __future__ import annotations

import importlib.metadata
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from specpilot_sglang.cli.interrupts import ended_like_ctrl_c
from specpilot_sglang.errors import SpecPilotError

if TYPE_CHECKING:
    from specpilot_sglang.kernels.w12_gemm.bench import Timing
    from specpilot_sglang.kernels.w12_gemm.bench_report import Report

app = typer.Typer(no_args_is_help=True, help="Time the kernels on this GPU.")


@app.callback()
def _root() -> None:
    pass


@app.command()
def gemm(
    out: Annotated[Path, typer.Option(help="Folder for gemm.json and two PNG plots.")],
    shape: Annotated[
        list[str] | None, typer.Option(help="N,K of a weight; may be repeated. Default: three models'.")
    ] = None,
    tokens: Annotated[str, typer.Option(help="Numbers of tokens, with commas; default up to 8192.")] = "",
    escapes: Annotated[float, typer.Option(min=0.0, max=0.5, help="Share of weights far outside their window.")] = 0.0,
    table: Annotated[Path | None, typer.Option(help="Dispatch table to write this GPU's entry into.")] = None,
) -> None:
    """Time W12, its 8-bit view and the best BF16 kernel per shape and number of tokens; random normal weights."""
    asked, numbers = [_pair(text) for text in shape or ()], _counts(tokens)
    import torch

    if not torch.cuda.is_available():
        raise SpecPilotError("no CUDA device to time kernels on", fix="run this on a machine with an NVIDIA GPU")
    from specpilot_sglang.kernels.w12_gemm import bench, dispatch
    from specpilot_sglang.kernels.w12_gemm.bench_report import Report, plot_ratios, plot_roofline

    shapes, counts = asked or list(bench.SHAPES), numbers or list(bench.TOKENS)
    console = Console(width=120)
    out.mkdir(parents=True, exist_ok=True)
    report = Report(_about(escapes), bench.copy_ceiling(), [])
    about, copy = report.about, report.copy
    console.print(f"{about['gpu']}: copy {copy:.2f} TB/s; random normal weights, {escapes:.1%} escapes")
    complete = False
    try:
        with ended_like_ctrl_c():
            for cell in bench.bench(shapes, counts, escapes):
                report.timings.extend(cell)
                report.save(out / "gemm.json", complete=False)  # whatever stops the run, what it has is kept
                console.print(_line(cell, copy))
        complete = True
    finally:
        if report.timings:
            report.save(out / "gemm.json", complete=complete)
            plot_ratios(report, out / "gemm-ratios.png")
            plot_roofline(report, out / "gemm-roofline.png")
            console.print(_summary(report))
    if table:
        dispatch.write(table, str(about["gpu"]), about, report.ratios())


def _pair(text: str) -> tuple[int, int]:
    try:
        n, k = _positive(text)
    except ValueError as exc:
        raise SpecPilotError(f"{text!r} is no shape", where="--shape", fix="give N,K, for example 14336,5120") from exc
    return n, k


def _counts(text: str) -> list[int]:
    try:
        return _positive(text) if text else []
    except ValueError as exc:
        fix = "give whole numbers from 1 on with commas, for example 1,16,256"
        raise SpecPilotError(f"{text!r} are no numbers of tokens", where="--tokens", fix=fix) from exc


def _positive(text: str) -> list[int]:
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise ValueError(text)
    return found


def _line(cell: list[Timing], copy: float) -> str:
    from specpilot_sglang.kernels.w12_gemm.bench_report import best

    named = {t.name: t for t in cell}
    head = f"{cell[0].n}x{cell[0].k} M={cell[0].tokens}"
    parts = [
        f"{t.name} {t.microseconds:.1f} us {t.terabytes_per_second:.2f} TB/s ({t.terabytes_per_second / copy:.0%}) "
        f"{best(named) / t.microseconds:.3f}x"
        for t in cell
    ]
    return f"{head:20s} " + " | ".join(parts)


def _summary(report: Report) -> Table:
    table = Table(title="Against the best BF16 kernel, weights above 50 MB but 5120x6144: geometric mean (least)")
    for column in ("tokens", "W12", "W12, launches not overlapped", "8-bit view"):
        table.add_column(column)
    counts = sorted({t.tokens for t in report.timings})
    few = [m for m in counts if m <= 16]
    for label, group in [("1..16", few), *((str(m), [m]) for m in counts)]:
        cells = [report.mean(name, group) for name in ("w12", "w12-serial", "nested8")]
        table.add_row(label, *(f"{mean:.3f} ({least:.3f})" for mean, least in cells))
    return table


def _about(escapes: float) -> dict[str, Any]:
    import torch

    return {
        "gpu": torch.cuda.get_device_name(),
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nvrtc": _version("nvidia-cuda-nvrtc"),
        "weights": "random normal",
        "escapes": escapes,
        "command": "specpilot bench " + " ".join(sys.argv[1:]),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    app()
