"""`specpilot eval` subcommands: suites, recorded runs, token forcing, accept length, load runs, scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from specpilot_sglang.cli import eval_force, eval_load
from specpilot_sglang.cli.console import OUT, number
from specpilot_sglang.cli.eval_options import (
    AsJson,
    Concurrency,
    Limit,
    Model,
    NewTokens,
    Server,
    Skip,
    Source,
    Suites,
    Whole,
    record_run,
)
from specpilot_sglang.errors import EXIT_REJECTED, SpecPilotError
from specpilot_sglang.eval import acceptance, recording

app = typer.Typer(no_args_is_help=True, help="Measure servers: load, answers token by token, accept length, accuracy.")
app.command("suites")(eval_load.suites_command)
app.command("force")(eval_force.force_command)
app.command("load")(eval_load.load_command)
app.command("score")(eval_load.score_command)


@app.command("record")
def record_command(
    server: Server,
    suite: Suites,
    out: Annotated[Path, typer.Option(help="JSON-lines file to write.")],
    limit: Limit = 16,
    skip: Skip = 0,
    max_new_tokens: NewTokens = 256,
    concurrency: Concurrency = 1,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end token.")] = False,
    model: Model = None,
    source: Source = "auto",
    whole: Whole = False,
    as_json: AsJson = False,
) -> int:
    """Answer prompts greedily and keep prompt and output token ids. Exit 1 when a request failed."""
    sampling = recording.greedy(max_new_tokens, ignore_eos=ignore_eos)
    run = record_run(server, suite, limit, skip, sampling, concurrency, model, source, whole)
    run.save(out)
    failed = [r for r in run.requests if r.error]
    tokens = sum(len(r.output_ids) for r in run.requests)
    if as_json:
        errors = [{"request": r.id, "error": r.error} for r in failed]
        row = {"out": str(out), "requests": len(run.requests), "tokens": tokens, "failed": errors, "about": run.about}
        OUT.print_json(json.dumps(row))
        return EXIT_REJECTED if failed else 0
    OUT.print(f"{len(run.requests)} requests, {tokens} tokens, {len(failed)} failed: {out}", soft_wrap=True)
    for request in failed:
        OUT.print(f"{request.id}: {request.error}", markup=False, soft_wrap=True)
    return EXIT_REJECTED if failed else 0


@app.command("accept")
def accept_command(
    server: Server,
    suite: Suites,
    limit: Annotated[int, typer.Option(min=0, help="Prompts a suite; 0 for all.")] = 0,
    skip: Skip = 0,
    max_new_tokens: NewTokens = 256,
    concurrency: Concurrency = 1,
    model: Model = None,
    source: Source = "auto",
    expect: Annotated[float | None, typer.Option(help="Accept length every suite must reach.")] = None,
    tolerance: Annotated[float, typer.Option(min=0.0, help="How far below, as a share.")] = 0.03,
    out: Annotated[Path | None, typer.Option(help="Keep the recorded run.")] = None,
    as_json: AsJson = False,
) -> int:
    """Measure tokens a verify step, the prefill's token left out. Exit 1 below the expectation or on a failure."""
    sampling = recording.greedy(max_new_tokens)
    run = record_run(server, suite, limit or None, skip, sampling, concurrency, model, source)
    if out:
        run.save(out)
    failed = [r for r in run.requests if r.error]
    rows = acceptance.by_suite(run.requests)
    if not any(row.steps for row in rows):
        raise SpecPilotError("no verify steps were reported", where=server, fix="measure a speculative server")
    low = [row for row in rows if expect is not None and not row.length >= expect * (1 - tolerance)]
    if as_json:
        suites_json = [{k: None if v != v else v for k, v in vars(row).items()} for row in rows]
        facts = {"failed": len(failed), "within": not low and not failed, "provenance": run.about["provenance"]}
        OUT.print_json(json.dumps({"suites": suites_json, **facts}))
    else:
        _print_acceptance(rows, len(failed))
    return EXIT_REJECTED if low or failed else 0


def _print_acceptance(rows: list[acceptance.Acceptance], failed: int) -> None:
    table = Table("suite", "prompts", "tokens", "verify steps", "accept length", "std. error", "as SGLang counts")
    for row in rows:
        figures = (number(row.length, 3), number(row.error, 3), number(row.sglang_length, 3))
        table.add_row(row.suite, str(row.requests), str(row.tokens), str(row.steps), *figures)
    OUT.print(table)
    if failed:
        OUT.print(f"{failed} requests failed and are left out")
