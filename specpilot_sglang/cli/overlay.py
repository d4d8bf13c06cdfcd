"""`specpilot overlay` subcommands: list, show, validate, schema, diff, new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specpilot_sglang.errors import EXIT_REJECTED, OverlayError
from specpilot_sglang.overlay import (
    InvalidOverlayError,
    LoadedOverlay,
    Problem,
    load_named,
    load_overlay,
    overlay_folders,
    overlay_json_schema,
    unsupported,
    validate_supported,
)
from specpilot_sglang.overlay import diff as compare
from specpilot_sglang.overlay.new import new_overlay

app = typer.Typer(no_args_is_help=True, help="List, check and compare overlays.")

Spec = Annotated[str, typer.Argument(metavar="NAME|PATH", help="Overlay name, folder or YAML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_overlays(as_json: AsJson = False) -> None:
    """List the overlays shipped and those of SPECPILOT_OVERLAY_PATH."""
    rows, errors = [], []
    for folder in overlay_folders():
        try:
            rows.append(_summary(load_named(folder)))
        except OverlayError as exc:
            rows.append({"name": folder.name, "path": str(folder), "error": exc.line()})
            errors.append(exc)
    if as_json:
        _print_json(rows)
    else:
        _print_list(rows)
    if errors:
        raise errors[0]


@app.command()
def show(spec: Spec, as_json: AsJson = False) -> None:
    """Show one overlay: its file, hash, mechanisms and whether this version supports them."""
    loaded = load_overlay(spec)
    if as_json:
        _print_json({**_summary(loaded), "overlay": loaded.overlay.model_dump(mode="json")})
        return
    summary = _summary(loaded)
    for key in ("name", "path", "sha256", "mechanisms", "unsupported"):
        typer.echo(f"# {key}: {_text(summary[key])}")
    typer.echo("\n" + loaded.path.read_text(encoding="utf-8-sig").rstrip())


@app.command()
def validate(
    specs: Annotated[list[str], typer.Argument(metavar="NAME|PATH...", help="Overlays to check.")],
    as_json: AsJson = False,
) -> None:
    """Check overlays: every defect with file:line:key and its fix; exit 2 when one is unusable."""
    results: list[dict[str, Any]] = []
    errors: list[OverlayError] = []
    for spec in specs:
        result, error = _check(spec)
        results.append(result)
        errors += [error] if error else []
    if as_json:
        _print_json(results)
    else:
        _print_checks(results)
    if errors:
        raise errors[0]


@app.command()
def schema() -> None:
    """Print the JSON Schema of overlay.yaml."""
    _print_json(overlay_json_schema())


@app.command()
def diff(a: Spec, b: Spec, as_json: AsJson = False) -> None:
    """Compare two overlays key by key; exit 1 when they differ (patch files included)."""
    left, right = load_overlay(a), load_overlay(b)
    changes = compare(left, right)
    # The same settings with other patch code, notes or comments are still another overlay for the judge.
    files_differ = not changes and left.sha256 != right.sha256
    if as_json:
        rows = [{"key": key, "a": old, "b": new} for key, old, new in changes]
        _print_json({"a": left.sha256, "b": right.sha256, "changes": rows, "files_differ": files_differ})
    else:
        _print_changes(changes, files_differ, (left.overlay.name, right.overlay.name))
    if changes or files_differ:
        raise typer.Exit(EXIT_REJECTED)


@app.command("new")
def new_command(
    name: Annotated[str, typer.Argument(help="Name of the new overlay and of its folder.")],
    folder: Annotated[Path, typer.Option(help="Where its folder goes.")] = Path("overlays"),
    source: Annotated[str, typer.Option("--from", metavar="NAME|PATH", help="Overlay to copy.")] = "template",
) -> None:
    """Start a deployment: copy the template, or another overlay, under a new name."""
    made = new_overlay(name, folder, source)
    typer.echo(f"{made}: edit {made / 'overlay.yaml'}, then `specpilot overlay validate ./{made}`")


def _summary(loaded: LoadedOverlay) -> dict[str, Any]:
    overlay = loaded.overlay
    return {
        "name": overlay.name,
        "path": str(loaded.path),
        "sha256": loaded.sha256,
        "match": overlay.match.model_dump(exclude_none=True),
        "mechanisms": list(overlay.mechanisms),
        "unsupported": unsupported(overlay),
        "description": overlay.description,
    }


def _check(spec: str) -> tuple[dict[str, Any], OverlayError | None]:
    try:
        loaded = load_overlay(spec)
        validate_supported(loaded)
    except InvalidOverlayError as exc:
        problems = [{"where": it.where(exc.path), **it.as_dict()} for it in exc.problems]
        return {"spec": spec, "valid": False, "problems": problems}, exc
    except OverlayError as exc:
        problem = {"where": exc.where or spec, **Problem(0, "", exc.what, exc.fix).as_dict()}
        return {"spec": spec, "valid": False, "problems": [problem]}, exc
    return {"spec": spec, "valid": True, "sha256": loaded.sha256, "problems": []}, None


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def _print_list(rows: list[dict[str, Any]]) -> None:
    table = Table("name", "for", "mechanisms", show_lines=True)
    table.columns[0].no_wrap = True
    table.columns[1].overflow = "fold"
    for row in rows:
        if "error" in row:
            table.add_row(escape(row["name"]), "[red]unusable, see below", "")
            continue
        match = "\n".join(f"{key}: {escape(value)}" for key, value in row["match"].items())
        table.add_row(escape(row["name"]), match or "only by name", _text(row["mechanisms"]))
    Console().print(table)


def _print_checks(results: list[dict[str, Any]]) -> None:
    for result in results:
        for problem in result["problems"]:
            typer.echo(f"{problem['where']}: {problem['what']}. Fix: {problem['fix']}")
        if result["valid"]:
            typer.echo(f"{_place(result['spec'])}: valid, sha256 {result['sha256']}")


def _print_changes(changes: list[tuple[str, Any, Any]], files_differ: bool, names: tuple[str, str]) -> None:
    if files_differ:
        typer.echo("the settings are the same, but comments or other files of the folders differ")
    elif not changes:
        typer.echo("no difference")
    else:
        table = Table("key", *map(escape, names))
        for key, old, new in changes:
            table.add_row(escape(key), escape(_text(old)), escape(_text(new)))
        Console().print(table)


def _place(spec: str) -> str:
    return str(Path(spec)) if Path(spec).exists() else spec


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
