"""Terminal output shared by the commands: progress bars on stderr, tables on stdout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from specpilot_sglang.eval.parallel import Progress as Callback

OUT = Console()
ERR = Console(stderr=True)


@contextmanager
def counting(what: str) -> Iterator[Callback]:
    """Show a progress bar on stderr while the block runs; yields its `(done, total)` callback."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=ERR, transient=True) as progress:
        task = progress.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield update


def number(value: float, digits: int = 2) -> str:
    """Format a number, a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
