"""`specpilot w12` subcommands: pack, unpack, verify, inspect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from specpilot_sglang.errors import EXIT_REJECTED
from specpilot_sglang.w12.checkpoint import PART_A, PARTS, open_checkpoint
from specpilot_sglang.w12.pack import pack_checkpoint
from specpilot_sglang.w12.pack_shard import PackOptions
from specpilot_sglang.w12.pack_shard import Progress as Report
from specpilot_sglang.w12.report import TensorReport, totals
from specpilot_sglang.w12.spec import DEFAULT_MAX_BITS
from specpilot_sglang.w12.unpack import unpack_checkpoint
from specpilot_sglang.w12.verify import inspect_checkpoint, verify_checkpoint

app = typer.Typer(no_args_is_help=True, help="Store BF16 weights in 12 bits, bit for bit.")

Source = Annotated[Path, typer.Argument(help="Model folder with config.json and safetensors files.")]
Packed = Annotated[Path, typer.Argument(help="Folder written by `specpilot w12 pack`.")]
Destination = Annotated[Path, typer.Argument(help="New folder; appears only when it is complete.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def pack(
    source: Source,
    destination: Destination,
    max_bits: Annotated[
        float, typer.Option(min=12.0, max=16.0, help="A tensor that needs more bits per weight stays BF16.")
    ] = DEFAULT_MAX_BITS,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Tensors whose name contains this stay BF16; may be repeated.")
    ] = None,
) -> None:
    """Pack the BF16 matrices of a model; everything else is copied. Run again after a kill: it goes on."""
    with _bar(source, "packing") as report:
        reports = pack_checkpoint(source, destination, PackOptions(max_bits, tuple(exclude or ())), report)
    typer.echo(_summary(reports))


@app.command()
def unpack(source: Packed, destination: Destination) -> None:
    """Write the original model back, byte for byte; every tensor is checked by its hash."""
    with _bar(source, "unpacking") as report:
        count = unpack_checkpoint(source, destination, report)
    typer.echo(f"{count} tensors unpacked, every SHA-256 is the original's")


@app.command()
def verify(source: Source, destination: Packed) -> int:
    """Compare a packed model with its original bit for bit; exit 1 when a bit differs."""
    with _bar(source, "comparing") as report:
        count, mismatches = verify_checkpoint(source, destination, report)
    for mismatch in mismatches:
        typer.echo(f"{mismatch.name}: {mismatch.what}")
    typer.echo(f"{count} tensors compared, {len(mismatches)} differ")
    return EXIT_REJECTED if mismatches else 0


@app.command()
def inspect(destination: Packed, as_json: Json = False) -> None:
    """Show bits per weight, escapes and zeros of every tensor, and why some stay as they were."""
    reports = inspect_checkpoint(destination)
    if as_json:
        typer.echo(json.dumps({"totals": totals(reports).as_json(), "tensors": [r.as_json() for r in reports]}))
        return
    Console().print(_table(reports))
    typer.echo(_summary(reports))


@contextmanager
def _bar(source: Path, verb: str) -> Iterator[Report]:
    """Show a progress bar on stderr over the bytes of `source`'s tensors, on a terminal only."""
    entries = [e for shard in open_checkpoint(source).tensors.values() for e in shard.values()]
    # Progress counts original bytes: two for each byte of plane A, none for a packed tensor's other parts.
    total = sum(2 * e.nbytes if e.name.endswith(PART_A) else e.nbytes * (not e.name.endswith(PARTS)) for e in entries)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(verb, total=total)
        yield lambda name, done: bar.update(task, advance=done, description=f"{verb} {name}"[-60:])


def _summary(reports: list[TensorReport]) -> str:
    total = totals(reports)
    before = sum(r.weights * 2 if r.packed else r.stored for r in reports)
    return (
        f"{total.packed} tensors packed at {total.bits_per_weight:.4f} bits per weight (all their bytes but the file "
        f"header), {total.kept} kept as they were; {before:,} -> {total.all_bytes:,} bytes; "
        f"{total.escapes} escapes, {total.zeros} zeros"
    )


def _table(reports: list[TensorReport]) -> Table:
    table = Table()
    for name in ("tensor", "dtype", "shape"):
        table.add_column(name, overflow="fold")
    for name in ("bits/weight", "escapes", "zeros", "worst row"):
        table.add_column(name, justify="right")
    table.add_column("kept because")
    for r in reports:
        figures = (f"{r.bits_per_weight:.4f}", str(r.escapes), str(r.zeros) + ("*" if r.zero_code else ""))
        cells = (*figures, str(r.worst_row)) if r.packed else (f"{r.bits_per_weight:.4g}", "", "", "")
        table.add_row(r.name, r.dtype, "x".join(map(str, r.shape)), *cells, r.reason)
    table.caption = "* zeros have a code of their own and cost nothing"
    return table
