"""Entry point of the `specpilot` console script: assembles subcommands, maps errors to exit codes."""

from __future__ import annotations

import sys
from typing import Any

import typer

from specpilot_sglang import __version__
from specpilot_sglang.cli import ab, bench, cost, demo, doctor, eval_cmd, loop, nightly, overlay, serve, w12
from specpilot_sglang.errors import EXIT_ERROR, SpecPilotError

#: What a wrong usage raises. Typer brings its own copy of click, so click's exceptions are none of its.
_USAGE: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

app = typer.Typer(
    name="specpilot",
    no_args_is_help=True,
    add_completion=False,
    help="Speculative decoding on stock SGLang, faster and with the same answers.",
)
app.add_typer(overlay.app, name="overlay")
app.add_typer(w12.app, name="w12")
app.add_typer(bench.app, name="bench")
app.add_typer(eval_cmd.app, name="eval")
app.add_typer(cost.app, name="cost")
app.add_typer(loop.app, name="loop")
ab.register(app)
demo.register(app)
nightly.register(app)
doctor.register(app)
serve.register(app)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"specpilot-sglang {__version__}")
        raise typer.Exit


@app.callback()
def _root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True)) -> None:
    pass


def run() -> None:
    """Run the command line; exit 0 ok, 1 rejected, 2 error (one line on stderr), 130 on Ctrl-C."""
    try:
        code = app(standalone_mode=False)
    except SpecPilotError as exc:
        sys.exit(_fail(exc.line()))
    except _USAGE as exc:
        exc.show()
        sys.exit(EXIT_ERROR)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(line: str) -> int:
    typer.echo(f"specpilot: error: {' '.join(line.split())}", err=True)
    return EXIT_ERROR
