"""Options and helpers that the `specpilot eval` subcommands share."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from specpilot_sglang.cli.console import counting
from specpilot_sglang.eval import provenance, recording, suites
from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.prompts import encode, load_tokenizer
from specpilot_sglang.eval.records import Run

SuiteNames = f"Any of {', '.join(suites.SUITES)}, or NAME=FILE.jsonl; may be repeated."

Server = Annotated[str, typer.Option(help="URL of a running server.")]
Suites = Annotated[list[str], typer.Option("--suite", help=SuiteNames)]
Source = Annotated[str, typer.Option(help="Where suites are read from: auto, package or hub.")]
Whole = Annotated[bool, typer.Option("--whole", help="Also GSM8K rows that the packaged drafter was trained on.")]
Limit = Annotated[int, typer.Option(min=1, help="Prompts a suite.")]
Skip = Annotated[int, typer.Option(min=0, help="Prompts to leave out at a suite's start.")]
NewTokens = Annotated[int, typer.Option(min=1, help="Most tokens an answer.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Requests in flight.")]
Model = Annotated[str | None, typer.Option(help="Folder of the tokenizer; the server's own by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def record_run(
    server: str,
    names: list[str],
    limit: int | None,
    skip: int,
    sampling: dict[str, Any],
    concurrency: int,
    model: str | None = None,
    source: str = "auto",
    whole: bool = False,
) -> Run:
    """Answer the prompts of some suites by a running server, with a progress bar and full provenance."""
    loaded = [suites.open_suite(name, source=source, whole=whole) for name in names]
    items = [item for name in names for item in suites.load(name, limit=limit, skip=skip, source=source, whole=whole)]
    origins = [{"suite": suite.name, **suite.origin.to_json()} for suite in loaded]
    with closing(Client(server)) as client:
        facts = provenance.collect(client.attestation(), suites=origins, skip=skip)
        about = {**recording.about_server(client), "suites": names, "provenance": facts}
        tokenizer = load_tokenizer(model or client.model_info()["tokenizer_path"])
        with counting("answering") as progress:
            prompts = encode(items, tokenizer)
            return recording.record(client, prompts, sampling, concurrency=concurrency, about=about, progress=progress)
