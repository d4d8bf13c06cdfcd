"""`specpilot aa` and `specpilot ab`: the noise of a host, and paired A/B with an accept rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from specpilot_sglang.cli.console import ERR, OUT
from specpilot_sglang.cli.interrupts import ended_like_ctrl_c
from specpilot_sglang.errors import EXIT_REJECTED, SpecPilotError
from specpilot_sglang.eval.ab import document, report
from specpilot_sglang.eval.ab.block import Block
from specpilot_sglang.eval.ab.config import load_settings
from specpilot_sglang.eval.ab.failures import CandidateFailedError
from specpilot_sglang.eval.ab.flow import Setup, run_aa, run_ab
from specpilot_sglang.eval.ab.host import store
from specpilot_sglang.eval.ab.noise import RECOMMENDED_BLOCKS, Noise
from specpilot_sglang.eval.ab.rule import percent

ab = typer.Typer(no_args_is_help=True, help="Compare a candidate with an incumbent, launch by launch.")

Config = Annotated[Path, typer.Option(help="YAML file with model, arms and load.")]
Out = Annotated[Path, typer.Option(help="Folder of the experiment; a started one is resumed.")]
Lock = Annotated[Path | None, typer.Option("--host-lock", help="File locked for the length of each block.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON on stdout.")]


def register(app: typer.Typer) -> None:
    """Add both commands to `app`."""
    app.command("aa")(aa_command)
    app.add_typer(ab, name="ab")


def aa_command(
    config: Config,
    out: Out,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of two launches.")] = RECOMMENDED_BLOCKS,
    lock: Lock = None,
    noise_dir: Annotated[Path | None, typer.Option(help="Keep the noise here instead of the cache.")] = None,
    as_json: AsJson = False,
) -> int:
    """Measure a host's noise: the incumbent against itself. The result is kept for `ab run`."""
    settings = load_settings(config)
    with ended_like_ctrl_c():
        noise, done, experiment = run_aa(Setup(settings, out, lock, _watch), blocks)
    result = document.of_noise(noise, done, experiment)
    path = store(noise, result["provenance"], noise_dir)
    _finish(result, out, as_json)
    if not as_json:
        OUT.print(f"kept for this host class: {path}", soft_wrap=True)
    return 0


@ab.command("run")
def run_command(
    config: Config,
    out: Out,
    noise: Annotated[Path | None, typer.Option(help="JSON report of an A/A, instead of the stored noise.")] = None,
    lock: Lock = None,
    as_json: AsJson = False,
) -> int:
    """Run blocks until the accept rule decides. Exit 0 accepted, 1 rejected, 2 error."""
    settings, known = load_settings(config), _noise(noise)
    setup = Setup(settings, out, lock, _watch)
    try:
        with ended_like_ctrl_c():
            trial, used, experiment = run_ab(setup, known)
    except CandidateFailedError as exc:
        result = document.of_failure(exc, settings)
        _finish(result, out, as_json)
        return EXIT_REJECTED
    result = document.of_trial(trial, used, experiment, settings.rule.rule())
    _finish(result, out, as_json)
    return 0 if trial.accepted else EXIT_REJECTED


@ab.command("report")
def report_command(
    out: Annotated[Path, typer.Argument(help="Folder of a finished A/A or A/B.")], as_json: AsJson = False
) -> int:
    """Write the report of a finished experiment again, from its blocks. Exit 0 accepted, 1 rejected."""
    result = document.again(out)
    _finish(result, out, as_json)
    return 0 if result.get("accepted", True) else EXIT_REJECTED


def _noise(path: Path | None) -> Noise | None:
    if path is None:
        return None
    try:
        row: Any = json.loads(path.read_text(encoding="utf-8"))
        return Noise.from_json(row.get("noise", row) if isinstance(row.get("noise"), dict) else row)
    except (OSError, ValueError, AttributeError) as exc:
        raise SpecPilotError(f"cannot read the A/A ({exc})", where=path, fix="give report.json of an A/A") from exc


def _watch(event: str, **facts: Any) -> None:
    if event == "arm":
        ERR.print(f"block {facts['block']}: {facts['arm']}", markup=False)
    elif event == "failure":
        ERR.print(f"block {facts['block']}: {facts['blame']}: {facts['reasons'][0]}", markup=False, soft_wrap=True)
    elif event == "block":
        block: Block = facts["block"]
        speeds = ", ".join(f"{name} {load.output_tok_s:.2f} tok/s" for name, load in sorted(block.loads.items()))
        ERR.print(f"block {block.index} done: {speeds}", markup=False)


def _finish(result: dict[str, Any], out: Path, as_json: bool) -> None:
    paths = report.write(result, out)
    if as_json:
        OUT.print_json(json.dumps(result))
        return
    _print(result)
    OUT.print(f"report: {', '.join(str(path) for path in paths)}", soft_wrap=True)


def _print(result: dict[str, Any]) -> None:
    table = Table("block", "order", *result["arms"], "log ratio", title=result["title"])
    for row in result["blocks"]:
        speeds = [f"{row['tok_s'][name]:.2f}" for name in result["arms"]]
        table.add_row(str(row["index"]), " ".join(row["order"]), *speeds, percent(row["log_ratio"]))
    OUT.print(table)
    for line in result["lines"]:
        OUT.print(line, markup=False, soft_wrap=True)
