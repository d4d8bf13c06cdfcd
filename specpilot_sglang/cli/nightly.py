"""`specpilot nightly`: the regression script, with history and report; exit 1 on a regression."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from specpilot_sglang.cli.console import ERR, OUT, number
from specpilot_sglang.cli.interrupts import ended_like_ctrl_c
from specpilot_sglang.errors import EXIT_REJECTED, SpecPilotError
from specpilot_sglang.eval.nightly import night
from specpilot_sglang.eval.nightly.configfile import load_config, smoke_path
from specpilot_sglang.eval.nightly.plan import BlockKey

_STYLES = {"ok": "green", "regression": "red", "not judged": "yellow", "note": "yellow"}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("nightly")(nightly)


def nightly(
    config: Annotated[Path | None, typer.Option(help="nightly.yaml; by default a smoke run of SmolLM2.")] = None,
    init: Annotated[Path | None, typer.Option(help="Write a configuration to start from, and stop.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew instead of resuming an unfinished run.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Check the configuration, measure nothing.")] = False,
    host_lock: Annotated[
        Path | None, typer.Option(help="File that each block locks, as `specpilot ab` does on the same machine.")
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="Runs whose raw files are kept.")] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON on stdout.")] = False,
) -> int:
    """Measure AR, stock and the plugin, judge them against each other and the history. Exit 1 on a regression."""
    if init is not None:
        return _init(init)
    source = config or smoke_path()
    settings = load_config(source)
    # The packaged file's own folder is no place to write to.
    place = night.place_of(settings, source.parent if config else Path("specpilot-nightly"))
    night.check(settings, place.base)
    if check:
        OUT.print(f"{source}: ok, {night.blocks_of(settings)} blocks, history {place.history}", soft_wrap=True)
        return 0
    with ended_like_ctrl_c():
        result = night.run(settings, place, _Lines(), fresh=fresh, keep=keep, host=host_lock)
    if as_json:
        OUT.print_json(json.dumps(result.document))
    else:
        _print(result.document, result.paths)
    return EXIT_REJECTED if result.document["state"] == "regression" else 0


def _init(path: Path) -> int:
    if path.exists():
        raise SpecPilotError("the file exists", where=path, fix="choose another name, or delete it")
    try:
        shutil.copyfile(smoke_path(), path)
    except OSError as exc:
        raise SpecPilotError(f"cannot write ({exc.strerror})", where=path, fix="choose another place") from exc
    OUT.print(f"wrote {path}; edit it, then: specpilot nightly --config {path}", soft_wrap=True)
    return 0


class _Lines:
    """Writes one line a stage on stderr, so that a CI log shows where a night stands."""

    def block(self, key: BlockKey, number: int, total: int, state: str) -> None:
        """See `run.Watcher`."""
        self.say(f"[{number}/{total}] {key.label}: {state}")

    def say(self, line: str) -> None:
        """Write a line with the time."""
        ERR.print(f"{time.strftime('%H:%M:%S')} {line}", markup=False, highlight=False, soft_wrap=True)


def _print(document: dict[str, Any], paths: dict[str, Path]) -> None:
    for d in document["deployments"]:
        table = Table("server", "in flight", title=f"{d['name']} ({d['dtype']})")
        for column in ("tok/s", "accept length", "mismatch rate", "right answers"):
            table.add_column(column, justify="right")
        for arm in d["arms"]:
            for load in arm["loads"]:
                table.add_row(*_row(arm, load))
        OUT.print(table)
        for check in d["checks"]:
            style = _STYLES[check["state"]]
            OUT.print(f"[{style}]{check['state']}[/{style}]", end=" ")
            OUT.print(f"{check['rule']}: {check['what']}", markup=False, highlight=False, soft_wrap=True)
    for notice in document["night"]["notices"]:
        OUT.print(notice, markup=False, soft_wrap=True)
    OUT.print(
        f"{document['state']}; took {document['night']['seconds']:.0f} s; report: {paths['html']}", soft_wrap=True
    )


def _row(arm: dict[str, Any], load: dict[str, Any]) -> tuple[str, ...]:
    means = [_mean(load[name]) for name in ("output_tok_s", "accept_length")]
    rate = (arm["forcing"] or {}).get("rate")
    right = ", ".join(f"{a['right']}/{a['of']}" for a in arm["accuracy"].values())
    shown = "-" if rate is None else f"{rate:.2%}"
    return arm["label"], str(load["concurrency"]), number(means[0], 1), number(means[1]), shown, right or "-"


def _mean(values: list[float | None]) -> float:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else float("nan")
