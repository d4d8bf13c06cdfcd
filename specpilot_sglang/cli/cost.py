"""`specpilot cost` subcommands: measure a deployment's cost table, show its gaps, predict speed-ups."""

from __future__ import annotations

import json
import time
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from specpilot_sglang.assets import drafter_path, prepare_smollm2
from specpilot_sglang.cli.console import ERR, OUT, number
from specpilot_sglang.cli.interrupts import ended_like_ctrl_c
from specpilot_sglang.errors import EXIT_REJECTED, SpecPilotError
from specpilot_sglang.loop.cost import heldout, predict
from specpilot_sglang.loop.cost.distribution import AcceptDistribution
from specpilot_sglang.loop.cost.gaps import Term, gaps
from specpilot_sglang.loop.cost.measure import measure as measure_table
from specpilot_sglang.loop.cost.plan import Case, Plan, cases_of
from specpilot_sglang.loop.cost.table import CostTable, find_table

app = typer.Typer(no_args_is_help=True, help="What a step costs, where its time goes, which speed-up follows.")

TablePath = Annotated[str, typer.Argument(metavar="FILE|NAME", help="cost.json, or the name of a packaged table.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
#: Relative error that a prediction may have.
TOLERANCE = 0.10


class Levels(IntEnum):
    """Verification levels."""

    one = 1
    two = 2


@app.command("measure")
def measure_command(
    model: Annotated[Path | None, typer.Option(help="Target's folder; SmolLM2-135M-Instruct by default.")] = None,
    draft: Annotated[Path | None, typer.Option(help="DFlash drafter's folder; the packaged one by default.")] = None,
    block: Annotated[list[int], typer.Option(min=2, help="Draft block; may be repeated.")] = [8, 4],  # noqa: B006
    concurrency: Annotated[list[int], typer.Option(min=1, help="In flight; may be repeated.")] = [1, 4],  # noqa: B006
    suite: Annotated[str, typer.Option(help="Prompts.")] = "gsm8k",
    prompts: Annotated[int, typer.Option(min=1, help="Requests a load at the least.")] = 6,
    max_new_tokens: Annotated[int, typer.Option(min=8, help="Tokens of every answer.")] = 64,
    dtype: Annotated[str, typer.Option(help="Data type of the servers.")] = "bfloat16",
    held_out: Annotated[
        list[str] | None, typer.Option(help="BLOCK:CONCURRENCY:SUITE to predict and compare; block 0 is AR.")
    ] = None,
    server_arg: Annotated[list[str] | None, typer.Option(help="Added to all servers; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times that every load is run, with new prompts.")] = 1,
    together: Annotated[
        bool, typer.Option(help="All servers up at once, taking turns: for a host with room whose speed changes.")
    ] = False,
    out: Annotated[Path, typer.Option(help="File to write; logs and the comparison go beside it.")] = Path("cost.json"),
    as_json: AsJson = False,
) -> int:
    """Measure a cost table with one server for AR and one a block. Exit 1 when a held-out prediction is off by 10%."""
    packaged = model is None and draft is None
    if not packaged and (model is None or draft is None):
        raise SpecPilotError("--model and --draft belong together", where="--model", fix="give both or neither")
    cases = (*cases_of(block, concurrency, suite), *(_case(text) for text in held_out or []))
    plan = Plan(
        name="smollm2-135m-dflash" if model is None else model.resolve().name,
        model=prepare_smollm2() if model is None else model.resolve(),
        draft=drafter_path() if draft is None else draft.resolve(),
        cases=cases,
        prompts=prompts,
        max_new_tokens=max_new_tokens,
        dtype=dtype,
        server_args=tuple(server_arg or ()),
        labels=("weights dequantised from a 4-bit Q4_1 release",) if packaged else (),
        rounds=rounds,
        together=together,
    )
    logs = out.parent / f"{out.stem}-logs"
    logs.mkdir(parents=True, exist_ok=True)
    with ended_like_ctrl_c():
        table, seen = measure_table(plan, logs.resolve(), _say)
    table.save(out)
    compared = {
        name: heldout.compare(table, seen, held_out=flag) for name, flag in (("fitted", False), ("held_out", True))
    }
    document = {name: [c.to_json() for c in rows] for name, rows in compared.items()}
    (out.parent / f"{out.stem}-predictions.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if as_json:
        OUT.print_json(json.dumps({"table": table.to_json(), **document}, default=str))
    else:
        _print_gaps(table, gaps(table))
        for name, rows in compared.items():
            _print_compared(name.replace("_", " "), rows)
    return EXIT_REJECTED if any(abs(c.error) > TOLERANCE for c in compared["held_out"]) else 0


@app.command("show")
def show_command(
    table: TablePath,
    batch: Annotated[int | None, typer.Option(min=1, help="Running requests.")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Tokens a request and pass.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the terms of a step with ceiling, kernel gap and overhead, the largest gap first."""
    loaded = find_table(table)
    terms = gaps(loaded, batch, width)
    if as_json:
        rows = [{**vars(term), "loss_s": term.loss_s} for term in terms]
        OUT.print_json(json.dumps({"name": loaded.name, "labels": loaded.labels, "terms": rows}))
    else:
        _print_gaps(loaded, terms)


@app.command("predict")
def predict_command(
    table: TablePath,
    suite: Annotated[str | None, typer.Option(help="Accept distribution of this suite from the table.")] = None,
    accept: Annotated[str | None, typer.Option(help="Steps by accepted drafts instead: 30,20,10,...")] = None,
    accept_length: Annotated[float | None, typer.Option(help="Or only the accept length.")] = None,
    block: Annotated[int | None, typer.Option(min=2, help="Draft block; the drafter's own by default.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Running requests.")] = 1,
    budget: Annotated[int | None, typer.Option(min=2, help="Tree nodes a request; a chain by default.")] = None,
    levels: Annotated[Levels, typer.Option(help="1, or 2 with cheap rounds over the 8-bit view.")] = Levels.one,
    cheap_rounds: Annotated[int, typer.Option(min=1, help="Cheap rounds of two levels.")] = 1,
    cheap_ratio: Annotated[float, typer.Option(help="Time of a cheap pass over an exact one.")] = 0.67,
    agreement: Annotated[float, typer.Option(help="Chance that the cheap pass agrees on a token.")] = 0.99,
    as_json: AsJson = False,
) -> None:
    """Predict speed and speed-up of a setting, prompts left out."""
    loaded = find_table(table)
    size = block or loaded.block
    setting = predict.Setting(
        accept=_distribution(loaded, suite, accept, accept_length, size),
        block=size,
        batch=concurrency,
        budget=budget,
        cheap_rounds=cheap_rounds if levels is Levels.two else 0,
        cheap_ratio=cheap_ratio,
        agreement=agreement,
    )
    found = predict.predict(loaded, setting)
    row = {**vars(found), "cost": found.cost, "speedup": found.speedup, "tok_s": found.tok_s(concurrency)}
    if as_json:
        OUT.print_json(json.dumps({"name": loaded.name, "labels": loaded.labels, **row}))
        return
    OUT.print(
        f"accept length {setting.accept.length:.3f}, {found.tokens:.3f} tokens a cycle of {1e3 * found.cycle_s:.2f} ms"
    )
    OUT.print(f"AR step {1e3 * found.ar_s:.2f} ms: a cycle costs {found.cost:.3f} AR steps")
    OUT.print(f"predicted: {found.speedup:.3f}x AR, {found.tok_s(concurrency):.1f} tok/s, prompts left out")
    if suite is not None and not loaded.measured_accept(suite, size):
        OUT.print(f"note: not measured with block {size}: cut from a larger one, which is optimistic", soft_wrap=True)
    _print_labels(loaded)


def _say(line: str) -> None:
    ERR.print(f"{time.strftime('%H:%M:%S')} {line}", markup=False, highlight=False, soft_wrap=True)


def _case(text: str) -> Case:
    try:
        block, concurrency, suite = text.split(":")
        return Case(int(block), int(concurrency), suite, held_out=True)
    except ValueError:
        fix = "write BLOCK:CONCURRENCY:SUITE, such as 6:2:gsm8k"
        raise SpecPilotError(f"{text!r} is no held-out setting", where="--held-out", fix=fix) from None


def _distribution(
    table: CostTable, suite: str | None, accept: str | None, length: float | None, block: int
) -> AcceptDistribution:
    given = [name for name, value in (("--suite", suite), ("--accept", accept), ("--accept-length", length)) if value]
    if len(given) != 1:
        raise SpecPilotError("give the accept distribution once", fix="use one of --suite, --accept, --accept-length")
    if suite is not None:
        return table.distribution(suite, block)
    if length is not None:
        return AcceptDistribution.of_length(length, block)
    try:
        counts = [float(part) for part in str(accept).split(",")]
    except ValueError:
        raise SpecPilotError(f"{accept!r} are no counts", where="--accept", fix="write 30,20,10") from None
    return AcceptDistribution.of_counts(counts)


def _print_gaps(table: CostTable, terms: list[Term]) -> None:
    first = terms[0]
    shown = Table("term", title=f"{table.name}: {first.batch} in flight, milliseconds, largest gap first")
    for column in ("batch x width", "whole", "ceiling", "bound by", "kernel gap", "overhead"):
        shown.add_column(column, justify="right")
    for t in terms:
        milliseconds = [None if v is None else 1e3 * v for v in (t.seconds, t.ceiling_s, t.gap_s, t.overhead_s)]
        whole, ceiling, gap, overhead = ("-" if v is None else number(v) for v in milliseconds)
        overhead = overhead if t.timed else "in the gap"
        shown.add_row(t.name, f"{t.batch} x {t.width}", whole, ceiling, t.bound or "-", gap, overhead)
    OUT.print(shown)
    if table.rates:
        rates = f"{table.rates.bytes_s / 1e9:.1f} GB/s, {table.rates.flops_s / 1e9:.0f} GFLOP/s"
        OUT.print(f"ceiling: weights once a pass at {rates}; keys, values and activations left out", soft_wrap=True)
    _print_labels(table)


def _print_labels(table: CostTable) -> None:
    for label in table.labels:
        OUT.print(f"note: {label}", markup=False, soft_wrap=True)


def _print_compared(name: str, rows: list[heldout.Compared]) -> None:
    if not rows:
        return
    shown = Table("load", title=f"Predicted against measured, {name}: output tok/s, speed-up over AR")
    for column in ("tok/s", "predicted", "error", "speed-up", "predicted", "error"):
        shown.add_column(column, justify="right")
    for c in rows:
        speed = (number(c.measured, 1), number(c.predicted, 1), _percent(c.error))
        shown.add_row(
            _name(c.case), *speed, _or_dash(c.speedup), _or_dash(c.predicted_speedup), _percent(c.speedup_error)
        )
    OUT.print(shown)
    moved = [c for c in rows if c.transferred_length is not None]
    if not moved:
        return
    shown = Table("load", title=f"The same with the fitted loads' accept distribution, {name}")
    for column in ("accept length", "predicted", "tok/s with it", "error"):
        shown.add_column(column, justify="right")
    for c in moved:
        lengths = (number(c.accept_length), _or_dash(c.transferred_length))
        shown.add_row(_name(c.case), *lengths, _or_dash(c.transferred), _percent(c.transferred_error))
    OUT.print(shown)


def _name(case: Case) -> str:
    return f"{f'block {case.block}' if case.block else 'AR'} x{case.concurrency} {case.suite}"


def _or_dash(value: float | None) -> str:
    return "-" if value is None else number(value)


def _percent(value: Any) -> str:
    return "-" if value is None else f"{100 * value:+.1f}%"
