"""`specpilot doctor`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specpilot_sglang.doctor import Check, Status, examine
from specpilot_sglang.errors import EXIT_REJECTED, SpecPilotError

_STYLE = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red", Status.ERROR: "bold magenta"}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("doctor")(doctor)


def doctor(
    model: Annotated[str | None, typer.Option("--model", metavar="PATH|HUB-ID", help="Target to match.")] = None,
    draft: Annotated[str | None, typer.Option("--draft", metavar="PATH|HUB-ID", help="Its drafter.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine: what works, what is missing, and the command that fixes it.

    Exit 0 when the plugin can serve here, 1 when a check failed, 2 when doctor itself could not finish.
    """
    checks = examine(model, draft)
    counts = Counter(check.status for check in checks)
    if as_json:
        passed = not counts[Status.FAIL] and not counts[Status.ERROR]
        typer.echo(json.dumps({"ok": passed, "checks": [check.as_dict() for check in checks]}, indent=2))
    else:
        _print(checks, counts)
    if counts[Status.ERROR]:
        first = next(check for check in checks if check.status is Status.ERROR)
        raise SpecPilotError(first.detail, where=f"doctor:{first.name}", fix=first.fix)
    if counts[Status.FAIL]:
        raise typer.Exit(EXIT_REJECTED)


def _print(checks: list[Check], counts: Counter[Status]) -> None:
    console = Console()
    table = Table("check", "", "found")
    table.columns[2].overflow = "fold"
    for check in checks:
        found = escape(check.detail) + (f"\n[bold]fix:[/] {escape(check.fix)}" if check.fix else "")
        table.add_row(escape(check.name), f"[{_STYLE[check.status]}]{check.status}[/]", found)
    console.print(table)
    console.print(", ".join(f"{counts[status]} {status}" for status in Status if counts[status]))
