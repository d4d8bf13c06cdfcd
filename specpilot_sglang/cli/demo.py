"""`specpilot demo`: AR, stock DFLASH and the plugin on this machine, with real prompts and a report."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from specpilot_sglang.assets import drafter_path, prepare_smollm2
from specpilot_sglang.cli.console import ERR, OUT, number
from specpilot_sglang.cli.interrupts import ended_like_ctrl_c
from specpilot_sglang.errors import EXIT_REJECTED, SpecPilotError
from specpilot_sglang.eval.demo import preflight, provenance, report, runner
from specpilot_sglang.eval.demo.outcome import ArmOutcome, Outcome
from specpilot_sglang.eval.demo.plan import Plan
from specpilot_sglang.eval.presets import block_size
from specpilot_sglang.eval.provenance import busy_warning, load_average, usable_cores

_DEQUANTISED = "(BF16 weights dequantised from a 4-bit Q4_1 release)"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("demo")(demo)


def demo(
    model: Annotated[Path | None, typer.Option(help="Target's folder; SmolLM2-135M-Instruct by default.")] = None,
    draft: Annotated[Path | None, typer.Option(help="DFlash drafter's folder; the packaged one by default.")] = None,
    overlay: Annotated[str | None, typer.Option(help="Overlay name or path; the matching one by default.")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Measured prompts a suite.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Most tokens an answer.")] = 96,
    dtype: Annotated[str, typer.Option(help="Data type of all servers.")] = "bfloat16",
    exact: Annotated[bool, typer.Option("--exact", help="Add a float32 pass that must match AR exactly.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="One short prompt a suite.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the report and the server logs.")] = Path("specpilot-report"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> int:
    """Serve one model three ways, compare speed and answers, write a report. Exit 1 if the answers do not hold."""
    report.require_packages()
    busy = busy_warning(load_average(), usable_cores())
    if quick:
        prompts, max_new_tokens = 1, min(max_new_tokens, 32)
    with ended_like_ctrl_c(), _Stages() as stages:
        stages.stage("model", "preparing", None)
        pair, about = _pair(model, draft)
        plan = Plan(*pair, overlay, prompts, max_new_tokens, dtype, about_model=about)
        strict = Plan(*pair, overlay, min(prompts, 2), min(max_new_tokens, 64), "float32") if exact else None
        preflight.check(plan)
        outcome = runner.run(plan, stages, _log_folder(out), exact=strict)
    plugin = outcome.arm("specpilot")
    facts = provenance.collect(plan, plugin.attestation if plugin else None)
    document = report.to_json(outcome, facts, busy)
    page, data = report.write(outcome, document, out)
    problems = outcome.problems()
    if as_json:
        OUT.print_json(json.dumps(document))
    else:
        OUT.print(_speed_table(outcome), _answer_table(outcome))
        if busy:
            OUT.print(busy, soft_wrap=True)
        OUT.print(f"rule: {outcome.rule()}", soft_wrap=True)
        OUT.print(f"took {stages.elapsed():.0f} s; report: {page}, data: {data}", soft_wrap=True)
        OUT.print("NOT accepted: " + "; ".join(problems) if problems else "accepted", markup=False, soft_wrap=True)
    return EXIT_REJECTED if problems else 0


def _pair(model: Path | None, draft: Path | None) -> tuple[tuple[Path, Path], str]:
    if (model is None) != (draft is None):
        missing = "--draft" if draft is None else "--model"
        raise SpecPilotError("--model and --draft belong together", where=missing, fix=f"give {missing} too")
    if model is None or draft is None:
        return (prepare_smollm2(), drafter_path()), _DEQUANTISED
    if not (model / "config.json").is_file():
        raise SpecPilotError("no config.json", where=model, fix="give a local Hugging Face folder with --model")
    block_size(draft)
    return (model.resolve(), draft.resolve()), ""


def _log_folder(out: Path) -> Path:
    folder = out / "logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise SpecPilotError(f"cannot make the folder ({exc.strerror})", where=folder, fix="choose --out") from exc
    return folder.resolve()


class _Stages:
    """Draws the runner's stages on stderr: one line each, with a bar where the number of steps is known."""

    def __init__(self) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20))
        self._progress = Progress(
            *columns, MofNCompleteColumn(), TimeElapsedColumn(), console=ERR, disable=not ERR.is_terminal
        )
        self._task: TaskID | None = None
        self._begin = time.monotonic()

    def __enter__(self) -> _Stages:
        self._progress.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._finish()
        self._progress.stop()

    def stage(self, arm: str, what: str, total: int | None) -> None:
        """See `runner.Watcher`."""
        self._finish()
        if not ERR.is_terminal:  # a log file: rich would write nothing until the end
            ERR.print(f"{self.elapsed():5.0f} s  {arm}: {what}", soft_wrap=True)
        self._task = self._progress.add_task(f"{arm}: {what}", total=total)

    def step(self, done: int) -> None:
        """See `runner.Watcher`."""
        if self._task is not None:
            self._progress.update(self._task, completed=done)

    def elapsed(self) -> float:
        """Return seconds since the start."""
        return time.monotonic() - self._begin

    def _finish(self) -> None:
        if self._task is not None:
            task = self._progress.tasks[self._task]
            self._progress.update(self._task, total=task.total or 1, completed=task.total or 1)
            self._progress.stop_task(self._task)


def _speed_table(outcome: Outcome) -> Table:
    table = Table("server", "suite", title=f"Speed, one request at a time, {outcome.dtype}")
    for column in ("tok/s", "median", "over AR", "accept length", "bits / weight"):
        table.add_column(column, justify="right")
    for arm in outcome.arms:
        for place, suite in enumerate(arm.suites()):
            speeds = (number(suite.speed, 1), number(suite.median, 1), number(outcome.speedup(arm, suite.suite)))
            bits = number(arm.bits_per_weight()) if place == 0 else ""
            name = arm.label if place == 0 else ""
            table.add_row(name, suite.suite, *speeds, number(suite.accept_length), bits)
        table.add_section()
    return table


def _answer_table(outcome: Outcome) -> Table:
    table = Table("server", title="Answers: token forcing against AR")
    for column in ("equal answers", "positions", "mismatches", "counted", "rate", "largest margin"):
        table.add_column(column, justify="right")
    for arm in [*outcome.arms, *outcome.exact]:
        if arm.forcing:
            table.add_row(*_answer_row(arm))
    return table


def _answer_row(arm: ArmOutcome) -> tuple[str, ...]:
    forcing = arm.forcing
    assert forcing is not None
    margins = [m.margin for m in forcing.mismatches if m.margin is not None]
    return (
        arm.label,
        f"{forcing.equal_requests()} of {len(forcing.verdicts)}",
        str(forcing.positions),
        str(len(forcing.mismatches)),
        str(len(forcing.counted)),
        f"{number(100 * forcing.rate)}%",
        number(max(margins, default=float("nan")), 4),
    )
