"""`specpilot eval` subcommands: record a run, force its tokens through a server, measure accept length."""

from __future__ import annotations

import json
import math
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from specpilot_sglang.cli.console import OUT, counting, number
from specpilot_sglang.errors import EXIT_REJECTED, SpecPilotError
from specpilot_sglang.eval import acceptance, forcing, forcing_prefill, recording, suites
from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.forcing_report import EXCUSE_MARGIN, ForcingReport
from specpilot_sglang.eval.prompts import encode, load_tokenizer
from specpilot_sglang.eval.records import Run, load_run

app = typer.Typer(no_args_is_help=True, help="Record runs, compare answers token by token, measure accept length.")


class Mode(StrEnum):
    """How token forcing judges a position."""

    decode = "decode"
    prefill = "prefill"


Server = Annotated[str, typer.Option(help="URL of a running server.")]
Suites = Annotated[list[str], typer.Option("--suite", help=f"Any of {', '.join(suites.SUITES)}; may be repeated.")]
Limit = Annotated[int, typer.Option(min=1, help="Prompts a suite.")]
Skip = Annotated[int, typer.Option(min=0, help="Prompts to leave out at a suite's start.")]
NewTokens = Annotated[int, typer.Option(min=1, help="Most tokens an answer.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Requests in flight.")]
Model = Annotated[str | None, typer.Option(help="Folder of the tokenizer; the server's own by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


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
) -> int:
    """Answer prompts greedily and keep prompt and output token ids. Exit 1 when a request failed."""
    sampling = recording.greedy(max_new_tokens, ignore_eos=ignore_eos)
    run = _record(server, suite, limit, skip, sampling, concurrency, model)
    run.save(out)
    failed = [r for r in run.requests if r.error]
    tokens = sum(len(r.output_ids) for r in run.requests)
    OUT.print(f"{len(run.requests)} requests, {tokens} tokens, {len(failed)} failed: {out}", soft_wrap=True)
    for request in failed:
        OUT.print(f"{request.id}: {request.error}", markup=False, soft_wrap=True)
    return EXIT_REJECTED if failed else 0


@app.command("force")
def force_command(
    reference: Annotated[str, typer.Option(help="Recorded run, or URL of a reference server (with --suite).")],
    candidate: Annotated[str, typer.Option(help="URL of the server under test.")],
    suite: Annotated[
        list[str] | None, typer.Option("--suite", help="Suite to record when --reference is a URL.")
    ] = None,
    limit: Limit = 16,
    skip: Skip = 0,
    max_new_tokens: NewTokens = 256,
    concurrency: Concurrency = 1,
    mode: Annotated[Mode, typer.Option(help="Through draft and verify, or by one prefill a request.")] = Mode.decode,
    margin_server: Annotated[
        str | None, typer.Option(help="URL that scores margins; the candidate by default.")
    ] = None,
    excuse_margin: Annotated[
        float, typer.Option(min=0.0, help="Nats under which a mismatch is a tie.")
    ] = EXCUSE_MARGIN,
    max_rate: Annotated[float, typer.Option(min=0.0, max=1.0, help="Accepted rate of counted mismatches.")] = 0.0,
    as_json: AsJson = False,
) -> int:
    """Teacher-force a reference's tokens through a candidate. Exit 0 within the rate, else 1."""
    run = _reference(reference, suite, limit, skip, max_new_tokens, concurrency)
    with (
        closing(Client(candidate)) as client,
        closing(Client(margin_server or candidate)) as judge,
        counting("token forcing") as progress,
    ):
        if mode is Mode.prefill:
            verdicts = forcing_prefill.force_by_prefill(run, client, concurrency=concurrency, progress=progress)
        else:
            verdicts = forcing.force(run, client, judge=judge, concurrency=concurrency, progress=progress)
    report = ForcingReport(verdicts, excuse_margin)
    ok = report.within(max_rate)
    if as_json:
        outcome = {"within": ok, "mode": mode.value, "max_rate": max_rate, **report.to_json()}
        OUT.print_json(json.dumps(outcome))
    else:
        _print_forcing(report, ok, max_rate)
    return 0 if ok else EXIT_REJECTED


@app.command("accept")
def accept_command(
    server: Server,
    suite: Suites,
    limit: Annotated[int, typer.Option(min=0, help="Prompts a suite; 0 for all.")] = 0,
    skip: Skip = 0,
    max_new_tokens: NewTokens = 256,
    concurrency: Concurrency = 1,
    model: Model = None,
    expect: Annotated[float | None, typer.Option(help="Accept length every suite must reach.")] = None,
    tolerance: Annotated[float, typer.Option(min=0.0, help="How far below, as a share.")] = 0.03,
    out: Annotated[Path | None, typer.Option(help="Keep the recorded run.")] = None,
    as_json: AsJson = False,
) -> int:
    """Measure tokens a verify step, the prefill's token left out. Exit 1 below the expectation or on a failure."""
    sampling = recording.greedy(max_new_tokens)
    run = _record(server, suite, limit or None, skip, sampling, concurrency, model)
    if out:
        run.save(out)
    failed = [r for r in run.requests if r.error]
    rows = acceptance.by_suite(run.requests)
    if not any(row.steps for row in rows):
        raise SpecPilotError("no verify steps were reported", where=server, fix="measure a speculative server")
    low = [row for row in rows if expect is not None and not row.length >= expect * (1 - tolerance)]
    if as_json:
        suites_json = [{k: None if v != v else v for k, v in vars(row).items()} for row in rows]
        OUT.print_json(json.dumps({"suites": suites_json, "failed": len(failed), "within": not low and not failed}))
    else:
        _print_acceptance(rows, len(failed))
    return EXIT_REJECTED if low or failed else 0


def _record(
    server: str,
    names: list[str],
    limit: int | None,
    skip: int,
    sampling: dict[str, Any],
    concurrency: int,
    model: str | None,
) -> Run:
    items = [item for name in names for item in suites.load(name, limit=limit, skip=skip)]
    with closing(Client(server)) as client:
        about = {**recording.about_server(client), "suites": names}
        tokenizer = load_tokenizer(model or client.model_info()["tokenizer_path"])
        with counting("answering") as progress:
            prompts = encode(items, tokenizer)
            return recording.record(client, prompts, sampling, concurrency=concurrency, about=about, progress=progress)


def _reference(
    reference: str, names: list[str] | None, limit: int, skip: int, max_new_tokens: int, concurrency: int
) -> Run:
    if not reference.startswith(("http://", "https://")):
        return load_run(Path(reference))
    if not names:
        raise SpecPilotError("a reference server needs prompts", where="--suite", fix="add --suite gsm8k")
    return _record(reference, names, limit, skip, recording.greedy(max_new_tokens), concurrency, None)


def _print_forcing(report: ForcingReport, ok: bool, max_rate: float) -> None:
    if report.mismatches:
        table = Table("request", "position", "reference", "candidate", "margin (nats)", "by", title="Mismatches")
        for m in report.mismatches:
            excused = m.margin is not None and m.margin < report.excuse_margin
            margin = "none" if m.margin is None else f"{m.margin:.3g}{' excused' if excused else ''}"
            tokens = ("ended" if t is None else str(t) for t in (m.reference, m.candidate))
            table.add_row(m.request, str(m.position), *tokens, margin, "prefill" if m.by_prefill else "decode")
        OUT.print(table)
    for verdict in report.failed:
        OUT.print(f"failed: {verdict.request}: {verdict.error}", markup=False, soft_wrap=True)
    low, high = report.interval()
    rate = "-" if math.isnan(report.rate) else f"{report.rate:.4%}"
    OUT.print(
        f"{len(report.verdicts)} requests ({report.equal_requests()} equal, {len(report.failed)} failed), "
        f"{report.positions} positions ({report.by_prefill} by prefill): {len(report.mismatches)} mismatches, "
        f"{len(report.counted)} counted; rate {rate}, 95% interval {low:.4%} to {high:.4%}",
        soft_wrap=True,
    )
    OUT.print("within" if ok else "NOT within", f"the accepted rate of {max_rate:.4%}")


def _print_acceptance(rows: list[acceptance.Acceptance], failed: int) -> None:
    table = Table("suite", "prompts", "tokens", "verify steps", "accept length", "std. error", "as SGLang counts")
    for row in rows:
        figures = (number(row.length, 3), number(row.error, 3), number(row.sglang_length, 3))
        table.add_row(row.suite, str(row.requests), str(row.tokens), str(row.steps), *figures)
    OUT.print(table)
    if failed:
        OUT.print(f"{failed} requests failed and are left out")
