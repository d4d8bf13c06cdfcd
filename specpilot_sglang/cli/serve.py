"""`specpilot serve`: checks its arguments, then becomes `python -m sglang.launch_server` with the plugin on."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.overlay import load_overlay, validate_supported

#: SGLang flags that this command sets itself -> how to say it here.
_OWN = {
    "--model-path": "--model",
    "--model": "--model",
    "--speculative-draft-model-path": "--draft",
    "--speculative-draft-model": "--draft",
    "--speculative-plugin": "nothing: it is always on",
    "--specpilot-overlay": "--overlay",
}
_TP = ("--tp", "--tp-size", "--tensor-parallel-size")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("serve")(serve)


def serve(
    model: Annotated[str, typer.Option("--model", metavar="PATH|HUB-ID", help="Target model.")],
    draft: Annotated[str | None, typer.Option("--draft", metavar="PATH|HUB-ID", help="Drafter for it.")] = None,
    overlay: Annotated[
        str, typer.Option("--overlay", metavar="NAME|PATH|auto|auto-or-stock", help="Overlay to apply.")
    ] = "auto",
    tp: Annotated[int, typer.Option("--tp", min=1, help="Tensor-parallel size.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command instead of running it.")] = False,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- SGLANG-ARGS...]", help="Further arguments for SGLang, after --.")
    ] = None,
) -> None:
    """Serve a model through the plugin; everything after `--` goes to SGLang as it is."""
    check_model(model, "--model")
    if draft is not None:
        check_model(draft, "--draft")
    if overlay not in ("auto", "auto-or-stock"):
        validate_supported(load_overlay(overlay))
    command = build_command(model, draft, overlay, tp, args or [])
    if dry_run:
        typer.echo(shlex.join(command))
        return
    typer.echo(f"+ {shlex.join(command)}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    # The server takes this process's place, so that signals and the exit code are its own.
    os.execv(command[0], command)


def build_command(model: str, draft: str | None, overlay: str, tp: int, extra: list[str]) -> list[str]:
    """Return the launch command.

    Raises:
        SpecPilotError: `extra` repeats a flag that this command sets.
    """
    _refuse_repeated(extra, tp)
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", model]
    if draft is not None:
        command += ["--speculative-draft-model-path", draft]
    command += ["--speculative-plugin", "specpilot", "--specpilot-overlay", overlay]
    if tp > 1:
        command += ["--tp-size", str(tp)]
    return [*command, *extra]


def check_model(path: str, flag: str) -> None:
    """Refuse a path that cannot be a model folder; a hub id (`org/name`) passes.

    Raises:
        SpecPilotError: no such folder, or one without config.json.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            fix = "pass the folder that holds config.json and the safetensors files"
            raise SpecPilotError(f"{path} has no config.json", where=flag, fix=fix)
    elif folder.exists():
        raise SpecPilotError(f"{path} is a file", where=flag, fix="pass the model's folder")
    elif not _HUB_ID.fullmatch(path):
        raise SpecPilotError(
            f"no such folder: {path}", where=flag, fix="correct the path, or give a hub id such as org/name"
        )


def _refuse_repeated(extra: list[str], tp: int) -> None:
    for word in extra:
        flag = word.split("=", 1)[0]
        if flag in _OWN:
            raise SpecPilotError(f"{flag} is set by this command", where="after --", fix=f"use {_OWN[flag]}")
        if flag in _TP and tp > 1:
            raise SpecPilotError(f"{flag} contradicts --tp {tp}", where="after --", fix="give one of the two")
