"""`specpilot loop`: run, status, resume, report, replay, rollback, memory, schema."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from specpilot_sglang.errors import SpecPilotError

app = typer.Typer(no_args_is_help=True, help="Agents look for gains; a judge they cannot touch decides.")

Root = Annotated[Path, typer.Option("--state", help="The loop's folder, on a local disk.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Config = Annotated[Path | None, typer.Option(help="YAML file; `specpilot loop schema` prints its schema.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Print command, mounts and environment; run nothing.")]
Out = Annotated[Path | None, typer.Option(help="Folder for report.html and report.json; the loop's by default.")]
_HERE = Path("specpilot-loop")


@app.command("run")
def run_command(
    state: Root = _HERE,
    config: Config = None,
    agent: Annotated[str | None, typer.Option(help="tuner, claude, claude-sdk or command.")] = None,
    overlay: Annotated[str | None, typer.Option(help="The first incumbent, by name or path.")] = None,
    candidates: Annotated[int | None, typer.Option(min=1, help="Proposals in all.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    memory: Annotated[str | None, typer.Option(help="on or off: whether agents are given the memory.")] = None,
    dry_run: Dry = False,
    as_json: AsJson = False,
) -> int:
    """Run a loop, or go on with one. Exit 0 when something was promoted, 1 when nothing was, 2 on an error."""
    settings = _actions().settings_of(config, agent, overlay, candidates, seed, memory)
    if dry_run:
        import_module("specpilot_sglang.cli.loop_dry_run").print_dry_run(settings, state)
        return 0
    return int(_actions().run(settings, state, as_json))


@app.command("resume")
def resume_command(state: Root = _HERE, as_json: AsJson = False) -> int:
    """Go on with a loop that was stopped or killed, with the settings it began with."""
    return int(_actions().run(_actions().former_settings(state), state, as_json))


@app.command("status")
def status_command(state: Root = _HERE, as_json: AsJson = False) -> int:
    """Say how a loop stands, while it runs too."""
    return int(_actions().status(state, as_json))


@app.command("report")
def report_command(state: Root = _HERE, out: Out = None, as_json: AsJson = False) -> int:
    """Write the report of a loop, running or not."""
    return int(_actions().report(state, out, as_json))


@app.command("replay")
def replay_command(state: Root = _HERE, as_json: AsJson = False) -> int:
    """Make every verdict again from its evidence. Exit 1 when one comes out differently."""
    return int(_actions().replayed(state, as_json))


@app.command("rollback")
def rollback_command(
    state: Root = _HERE,
    to: Annotated[int | None, typer.Option(min=0, help="Generation; the one before by default.")] = None,
) -> int:
    """Make an earlier generation the incumbent again, and publish it."""
    return int(_actions().rollback(state, to))


@app.command("memory")
def memory_command(
    query: Annotated[str, typer.Argument(help="Words to look for; everything without any.")] = "",
    state: Root = _HERE,
    as_json: AsJson = False,
) -> int:
    """Print what is known, as Markdown, or the entries that fit some words."""
    return int(_actions().memory(query, state, as_json))


@app.command("schema")
def schema_command() -> int:
    """Print the JSON Schema of the loop's YAML file."""
    return int(_actions().schema())


def _actions() -> Any:
    """Return the commands' bodies, which need the extra `loop`; every other command works without it."""
    needed = ("jinja2", "libcst", "matplotlib", "optuna", "tenacity", "unidiff")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        fix = "pip install 'specpilot-sglang[loop]'"
        raise SpecPilotError(f"the loop needs the packages {', '.join(missing)}", where="loop", fix=fix)
    return import_module("specpilot_sglang.cli.loop_actions")
