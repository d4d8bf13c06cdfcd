"""`specpilot eval load|score|suites`: one load run on a server of its own, scores of its answers, what can be asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from specpilot_sglang.cli.console import ERR, OUT, counting, number
from specpilot_sglang.cli.eval_options import AsJson, Source
from specpilot_sglang.errors import EXIT_REJECTED, SpecPilotError
from specpilot_sglang.eval import protocols, provenance, scorers, suites
from specpilot_sglang.eval.files import write_whole
from specpilot_sglang.eval.load.results import LoadResult, load_result
from specpilot_sglang.eval.load.run import RunRefusedError, run_load
from specpilot_sglang.eval.servers import Server
from specpilot_sglang.eval.suites import Item


def load_command(
    out: Annotated[Path, typer.Option(help="Folder of the result, the client's files and the server's log.")],
    server_args: Annotated[
        list[str], typer.Argument(metavar="-- SGLANG-ARGS...", help="Arguments of the server, after --.")
    ],
    protocol: Annotated[str, typer.Option(help=f"Any of {', '.join(protocols.PROTOCOLS)}.")] = "smoke",
    file: Annotated[list[str] | None, typer.Option(help="SUITE=FILE.jsonl: prompts that replace a suite's.")] = None,
    source: Source = "auto",
    concurrency: Annotated[int | None, typer.Option(min=1, help="Requests in flight; the protocol's.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draw of prompts.")] = 0,
    unrecorded: Annotated[
        bool, typer.Option("--unrecorded", help="Keep figures that a recorded run refuses, with the reasons.")
    ] = False,
    start_timeout_s: Annotated[float, typer.Option(help="Seconds the server may take to start.")] = 600.0,
    as_json: AsJson = False,
) -> int:
    """Start a server, send a protocol's prompts through SGLang's benchmark client, keep everything.

    Exit 1 when the run is refused or a request failed.
    """
    plan = protocols.find(protocol)
    work = plan.workload(seed=seed, source=source, files=_files(file or []), concurrency=concurrency)
    out.mkdir(parents=True, exist_ok=True)
    ERR.print(f"starting the server: {out / 'server.log'}", markup=False, soft_wrap=True)
    with Server(server_args, log=out / "server.log", start_timeout_s=start_timeout_s) as server:
        ERR.print(f"{len(work.items)} requests, {work.concurrency} at a time: {out / 'client.log'}", soft_wrap=True)
        try:
            result = run_load(server, work, out, recorded=not unrecorded)
        except RunRefusedError as exc:
            return _refused(exc, as_json)
    row = {"protocol": plan.to_json(), **summary(result)}
    if plan.scored:
        row["accuracy"] = _score(result, list(work.items), out / "scores.json")
    if as_json:
        OUT.print_json(json.dumps(row))
    else:
        _print_summary(row)
    return EXIT_REJECTED if row["failed"] or row["refused"] else 0


def score_command(
    result: Annotated[Path, typer.Argument(help="load.json of a load run.")],
    file: Annotated[list[str] | None, typer.Option(help="SUITE=FILE.jsonl the prompts were read from.")] = None,
    source: Source = "auto",
    out: Annotated[Path | None, typer.Option(help="Keep every answer's score as JSON.")] = None,
    as_json: AsJson = False,
) -> int:
    """Score the answers of a load run; generated code runs in a jail."""
    loaded, files = load_result(result), _files(file or [])
    names = [name for name in dict.fromkeys(s.suite for s in loaded.samples) if name in scorers.SCORERS]
    given = [f"{name}={files[name]}" if name in files else name for name in names]
    known = {i.id: i for name in given for i in suites.open_suite(name, source=source, whole=True).items}
    items = [known[s.id] for s in loaded.samples if s.id in known]
    if not items:
        raise SpecPilotError("none of the answers is of a suite with a scorer", where=result, fix="score another run")
    rows = _score(loaded, items, out)
    if as_json:
        OUT.print_json(json.dumps({"accuracy": rows}))
    else:
        OUT.print(_accuracy_table(rows))
    return 0


def suites_command(as_json: AsJson = False) -> int:
    """List suites, where they come from, and the protocols."""
    rows = [
        {"name": s.name, "about": s.about, "package": s.asset, "hub": f"{s.hub.repo}@{s.hub.revision}"}
        | {"scored": s.name in scorers.SCORERS}
        for s in suites.SUITES.values()
    ]
    plans = [plan.to_json() for plan in protocols.PROTOCOLS.values()]
    if as_json:
        OUT.print_json(json.dumps({"suites": rows, "protocols": plans}))
        return 0
    table = Table("suite", "what", "package", "hub", "scored")
    for spec in suites.SUITES.values():
        place = f"{spec.hub.repo} {spec.hub.revision[:8]}"
        table.add_row(spec.name, spec.about, spec.asset or "-", place, "yes" if spec.name in scorers.SCORERS else "no")
    OUT.print(table)
    for plan in plans:
        OUT.print(f"protocol {plan['name']}: {plan['about']}", soft_wrap=True)
    return 0


def summary(result: LoadResult) -> dict[str, Any]:
    """Return the figures of a load result as JSON values; NaN becomes None."""
    figures = {
        "output_tok_s": result.output_tok_s,
        "duration_s": result.duration_s,
        "ttft_p50_s": result.ttft_p50_s,
        "ttft_p99_s": result.ttft_p99_s,
        "itl_p50_s": result.itl_p50_s,
        "itl_p99_s": result.itl_p99_s,
        "accept_length": result.accept_length,
    }
    return {
        "requests": len(result.samples),
        "failed": [{"id": s.id, "error": s.error} for s in result.samples if s.error],
        "output_tokens": result.output_tokens,
        "verify_steps": result.verify_steps,
        **{name: None if value is None or value != value else value for name, value in figures.items()},
        "refused": result.environment["refused"],
        "provenance": result.environment["provenance"],
    }


def _score(result: LoadResult, items: list[Item], out: Path | None) -> list[dict[str, Any]]:
    answers = {s.id: s.text for s in result.good}
    with counting("scoring") as progress:
        scores = scorers.score_all(items, answers, progress=progress)
    rows = [a.to_json() for a in scorers.by_suite(scores)]
    if out:
        facts = provenance.collect(result.attestation_after, measured=result.environment.get("provenance"))
        row = {"accuracy": rows, "scores": [vars(s) for s in scores], "provenance": facts}
        write_whole(out, json.dumps(row) + "\n", fix="choose another file")
    return rows


def _refused(exc: RunRefusedError, as_json: bool) -> int:
    if as_json:
        OUT.print_json(json.dumps({"refused": list(exc.reasons), "when": exc.when}))
    else:
        OUT.print(f"REFUSED {exc.when} the run:", *(f"  {reason}" for reason in exc.reasons), sep="\n", markup=False)
    return EXIT_REJECTED


def _print_summary(row: dict[str, Any]) -> None:
    table = Table("figure", "value")
    for name in ("requests", "output_tokens", "verify_steps"):
        table.add_row(name.replace("_", " "), "-" if row[name] is None else str(row[name]))
    for name in ("output_tok_s", "duration_s", "accept_length", "ttft_p50_s", "ttft_p99_s", "itl_p50_s", "itl_p99_s"):
        table.add_row(name.replace("_", " "), "-" if row[name] is None else number(row[name], 4))
    OUT.print(table)
    if "accuracy" in row:
        OUT.print(_accuracy_table(row["accuracy"]))
    for failed in row["failed"]:
        OUT.print(f"failed: {failed['id']}: {failed['error']}", markup=False, soft_wrap=True)
    for reason in row["refused"]:
        OUT.print(f"not fit for a record: {reason}", markup=False, soft_wrap=True)


def _accuracy_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("suite", "right", "of", "accuracy", "95% interval")
    for row in rows:
        span = f"{row['low']:.1%} to {row['high']:.1%}"
        table.add_row(row["suite"], str(row["correct"]), str(row["total"]), f"{row['rate']:.1%}", span)
    return table


def _files(pairs: list[str]) -> dict[str, str]:
    files = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(files) != len(pairs):
        raise SpecPilotError("a file needs its suite's name", where="--file", fix="write --file mbpp=FILE.jsonl")
    return files
