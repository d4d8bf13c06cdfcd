"""`specpilot eval force`: a reference's tokens through a candidate, alone or against stock."""

from __future__ import annotations

import json
import math
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from specpilot_sglang.cli.console import OUT, counting
from specpilot_sglang.cli.eval_options import AsJson, Concurrency, Limit, NewTokens, Skip, record_run
from specpilot_sglang.errors import EXIT_REJECTED, SpecPilotError
from specpilot_sglang.eval import forcing, forcing_prefill, provenance, recording
from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.files import write_whole
from specpilot_sglang.eval.forcing_report import EXCUSE_MARGIN, ForcingReport
from specpilot_sglang.eval.forcing_verdict import MAX_EXCESS, NEAR_TIE, ForcingVerdict, compare
from specpilot_sglang.eval.records import Run, load_run


class Mode(StrEnum):
    """How token forcing judges a position."""

    decode = "decode"
    prefill = "prefill"


def force_command(
    reference: Annotated[str, typer.Option(help="Recorded run, or URL of a reference server (with --suite).")],
    candidate: Annotated[str, typer.Option(help="URL of the server under test.")],
    stock: Annotated[
        str | None, typer.Option(help="URL of a stock server, or its report from --out: the full verdict against it.")
    ] = None,
    suite: Annotated[
        list[str] | None, typer.Option("--suite", help="Suite to record when --reference is a URL.")
    ] = None,
    limit: Limit = 16,
    skip: Skip = 0,
    max_new_tokens: NewTokens = 256,
    concurrency: Concurrency = 1,
    mode: Annotated[Mode, typer.Option(help="Through draft and verify, or by one prefill a request.")] = Mode.decode,
    margin_server: Annotated[
        str | None,
        typer.Option(help="URL that scores margins; by default the reference's or stock's, else the candidate itself."),
    ] = None,
    excuse_margin: Annotated[
        float, typer.Option(min=0.0, help="Nats under which a mismatch is a tie.")
    ] = EXCUSE_MARGIN,
    max_rate: Annotated[float, typer.Option(min=0.0, max=1.0, help="Accepted rate, without --stock.")] = 0.0,
    max_excess: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Accepted excess over stock's rate, with --stock.")
    ] = MAX_EXCESS,
    dtype: Annotated[
        str | None, typer.Option(help=f"Data type that sets near ties: {', '.join(NEAR_TIE)}; the candidate's own.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Keep the report as JSON.")] = None,
    as_json: AsJson = False,
) -> int:
    """Teacher-force a reference's tokens through a candidate. Exit 0 when its answers hold, 1 when not."""
    run = _reference(reference, suite, limit, skip, max_new_tokens, concurrency)
    judge = margin_server or next((url for url in (reference, stock) if url and _is_url(url)), candidate)
    baseline = None if stock is None else _stock(stock, run, judge, concurrency, mode, excuse_margin)
    report = _forced(candidate, run, judge, concurrency, mode, excuse_margin, "token forcing")
    verdict = None if baseline is None else _compare(baseline, report, candidate, dtype, max_excess)
    ok = report.within(max_rate) if verdict is None else verdict.accepted
    with closing(Client(candidate)) as client:
        facts = provenance.collect(client.attestation(), reference=run.about, margins_by=judge, candidate=candidate)
    row: dict[str, Any] = {"within": ok, "mode": mode.value, **report.to_json(), "provenance": facts}
    if verdict is None or baseline is None:
        row["max_rate"] = max_rate
    else:
        row |= {"verdict": verdict.to_json(), "stock": baseline.to_json()}
    if out:
        write_whole(out, json.dumps(row) + "\n", fix="choose another file")
    if as_json:
        OUT.print_json(json.dumps(row))
    else:
        _print(report, ok, max_rate, verdict)
    return 0 if ok else EXIT_REJECTED


def _forced(
    url: str, run: Run, judge: str, concurrency: int, mode: Mode, excuse_margin: float, what: str
) -> ForcingReport:
    with closing(Client(url)) as client, closing(Client(judge)) as scorer, counting(what) as progress:
        if mode is Mode.prefill:
            verdicts = forcing_prefill.force_by_prefill(run, client, concurrency=concurrency, progress=progress)
        else:
            verdicts = forcing.force(run, client, judge=scorer, concurrency=concurrency, progress=progress)
    return ForcingReport(verdicts, excuse_margin)


def _stock(stock: str, run: Run, judge: str, concurrency: int, mode: Mode, excuse_margin: float) -> ForcingReport:
    if _is_url(stock):
        return _forced(stock, run, judge, concurrency, mode, excuse_margin, "token forcing, stock")
    try:
        return ForcingReport.from_json(json.loads(Path(stock).read_text(encoding="utf-8")))
    except (OSError, ValueError) as exc:
        fix = "make one with `specpilot eval force --candidate STOCK --out FILE`"
        raise SpecPilotError(f"cannot read stock's report ({exc})", where=stock, fix=fix) from exc


def _compare(
    stock: ForcingReport, report: ForcingReport, candidate: str, dtype: str | None, max_excess: float
) -> ForcingVerdict:
    if dtype is None:
        with closing(Client(candidate)) as client:
            dtype = str(client.server_info().get("dtype") or "auto").removeprefix("torch.")
    # `auto` takes the checkpoint's type; models of today are published in BF16.
    return compare(
        stock, report, dtype={"auto": "bfloat16", "half": "float16"}.get(dtype, dtype), max_excess=max_excess
    )


def _reference(
    reference: str, names: list[str] | None, limit: int, skip: int, max_new_tokens: int, concurrency: int
) -> Run:
    if not _is_url(reference):
        return load_run(Path(reference))
    if not names:
        raise SpecPilotError("a reference server needs prompts", where="--suite", fix="add --suite gsm8k")
    return record_run(reference, names, limit, skip, recording.greedy(max_new_tokens), concurrency)


def _is_url(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _print(report: ForcingReport, ok: bool, max_rate: float, verdict: ForcingVerdict | None) -> None:
    if report.mismatches:
        OUT.print(_mismatches(report))
    for failed in report.failed:
        OUT.print(f"failed: {failed.request}: {failed.error}", markup=False, soft_wrap=True)
    low, high = report.interval()
    rate = "-" if math.isnan(report.rate) else f"{report.rate:.4%}"
    OUT.print(
        f"{len(report.verdicts)} requests ({report.equal_requests()} equal, {len(report.failed)} failed), "
        f"{report.positions} positions ({report.by_prefill} by prefill): {len(report.mismatches)} mismatches, "
        f"{len(report.counted)} counted; rate {rate}, 95% interval {low:.4%} to {high:.4%}",
        soft_wrap=True,
    )
    if verdict is None:
        OUT.print("within" if ok else "NOT within", f"the accepted rate of {max_rate:.4%}")
        return
    OUT.print(f"stock's rate {verdict.stock_rate:.4%}, candidate's {verdict.candidate_rate:.4%}", soft_wrap=True)
    OUT.print(f"{'accepted' if ok else 'REJECTED'}: {verdict.reason}", markup=False, soft_wrap=True)


def _mismatches(report: ForcingReport) -> Table:
    table = Table("request", "position", "reference", "candidate", "margin (nats)", "by", title="Mismatches")
    for m in report.mismatches:
        excused = m.margin is not None and m.margin < report.excuse_margin
        margin = "none" if m.margin is None else f"{m.margin:.3g}{' excused' if excused else ''}"
        tokens = ("ended" if t is None else str(t) for t in (m.reference, m.candidate))
        table.add_row(m.request, str(m.position), *tokens, margin, "prefill" if m.by_prefill else "decode")
    return table
