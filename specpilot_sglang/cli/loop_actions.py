"""What the `specpilot loop` commands do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from specpilot_sglang.cli.console import OUT
from specpilot_sglang.cli.interrupts import ended_like_ctrl_c
from specpilot_sglang.cli.loop_view import watching
from specpilot_sglang.errors import EXIT_REJECTED, SpecPilotError
from specpilot_sglang.loop.agents.settings import AgentSettings
from specpilot_sglang.loop.controller import history
from specpilot_sglang.loop.controller.context import Context
from specpilot_sglang.loop.controller.loop import Summary, controlling, run_loop
from specpilot_sglang.loop.controller.promote import roll_back
from specpilot_sglang.loop.controller.replay import replay
from specpilot_sglang.loop.controller.settings import LoopSettings, load_loop
from specpilot_sglang.loop.controller.state import State
from specpilot_sglang.loop.executors import Executor
from specpilot_sglang.loop.executors.local import LocalExecutor
from specpilot_sglang.loop.executors.ray_jobs import RayExecutor
from specpilot_sglang.loop.journal import JobState, Journal
from specpilot_sglang.loop.memory import Memory
from specpilot_sglang.loop.report.document import document
from specpilot_sglang.loop.report.write import write_report

_PRESETS = ("tuner", "claude", "claude-sdk", "command")


def settings_of(
    config: Path | None,
    agent: str | None,
    overlay: str | None,
    candidates: int | None,
    seed: int | None,
    memory: str | None,
) -> LoopSettings:
    """Return the file's settings with the command line's on top."""
    settings = load_loop(config)
    if memory not in (None, "on", "off"):
        raise SpecPilotError(f"{memory!r} is neither on nor off", where="--memory", fix="give --memory on or off")
    row: dict[str, Any] = settings.model_dump(mode="json")
    given = {"overlay": overlay, "candidates": candidates, "seed": seed}
    row |= {name: value for name, value in given.items() if value is not None}
    if memory is not None:
        row["memory"] = memory == "on"
    if agent is not None and agent != settings.agent.preset:
        if agent not in _PRESETS:
            raise SpecPilotError(f"no agent is called {agent!r}", where="--agent", fix=f"use {', '.join(_PRESETS)}")
        if agent == "command":
            raise SpecPilotError("it needs a command", where="--agent", fix="set agent.command in --config")
        row["agent"] = {**AgentSettings().model_dump(mode="json"), **row["agent"], "preset": agent, "command": []}
    return LoopSettings.model_validate_json(json.dumps(row))


def former_settings(root: Path) -> LoopSettings:
    """Return the settings that a loop began with."""
    with _opened(root) as (state, journal, _):
        return LoopSettings.model_validate_json(json.dumps(_begin(journal, state)["settings"]))


def run(settings: LoopSettings, root: Path, as_json: bool) -> int:
    """Run or resume a loop; 0 when it has promoted something, else 1."""
    state, executor = State(root.resolve()), _executor(settings)
    with ended_like_ctrl_c(), Journal(state.root) as journal:
        context = Context(settings, state, journal, Memory(state.memory), executor)
        with watching(context):
            summary = run_loop(context)
        content = document(state, journal, context.memory)
    write_report(content, state.root)
    _finish(summary, state, as_json)
    return 0 if summary.promoted else EXIT_REJECTED


def status(root: Path, as_json: bool) -> int:
    """Print how a loop stands."""
    begin, state = time.monotonic(), _state(root)
    with Journal(state.root) as journal:
        row: dict[str, Any] = {
            **{"overlay": _begin(journal, state)["overlay"], "generation": history.generation(journal)},
            **{"jobs": journal.counts(), "events": journal.length(), "finished": _finished(journal)},
            "leased": [{"key": j.key, "worker": j.worker} for j in journal.jobs(state=JobState.LEASED)],
            "query_s": round(time.monotonic() - begin, 4),
        }
    if as_json:
        OUT.print_json(json.dumps(row))
        return 0
    table = Table("jobs", "state", "count", title=f"{row['overlay']}, generation {row['generation']}")
    for kind, states in row["jobs"].items():
        for name, count in states.items():
            table.add_row(kind, name, str(count))
    OUT.print(table)
    OUT.print(f"{row['events']} events; {row['finished'] or 'not finished'}", markup=False)
    return 0


def report(root: Path, out: Path | None, as_json: bool) -> int:
    """Write the report."""
    with _opened(root) as (state, journal, memory):
        _begin(journal, state)
        content = document(state, journal, memory)
    paths = write_report(content, out or root)
    if as_json:
        OUT.print_json(json.dumps(content, default=str))
    else:
        OUT.print(f"report: {', '.join(map(str, paths))}", soft_wrap=True)
    return 0


def replayed(root: Path, as_json: bool) -> int:
    """Make every verdict again."""
    with _opened(root) as (state, journal, _):
        _begin(journal, state)
        rows = list(replay(state, journal))
    if as_json:
        OUT.print_json(json.dumps([asdict(row) for row in rows]))
    else:
        for row in rows:
            OUT.print(f"{row.what}: {row.problem or 'the same'}", markup=False, soft_wrap=True)
    return EXIT_REJECTED if any(row.problem for row in rows) else 0


def rollback(root: Path, to: int | None) -> int:
    """Go back to an earlier generation."""
    settings = former_settings(root)
    with _opened(root) as (state, journal, memory_):
        context = Context(settings, state, journal, memory_, LocalExecutor())
        with controlling(context):
            number = roll_back(context, to)
    OUT.print(f"generation {number} is the incumbent: {state.published}", soft_wrap=True)
    return 0


def memory(query: str, root: Path, as_json: bool) -> int:
    """Print the memory."""
    with _opened(root) as (_, _, known):
        entries = known.search(query) if query else [entry for entry, _ in known.all()]
        text = known.markdown()
    if as_json:
        OUT.print_json(json.dumps([entry.model_dump(mode="json") for entry in entries]))
    elif query:
        for entry in entries:
            line = f"{entry.deployment}, {entry.mechanism}: {entry.hypothesis} {entry.reason}"
            OUT.print(line, markup=False, soft_wrap=True)
    else:
        typer.echo(text)
    return 0


def schema() -> int:
    """Print the JSON Schema of the settings."""
    OUT.print_json(json.dumps(LoopSettings.model_json_schema()))
    return 0


def _finish(summary: Summary, state: State, as_json: bool) -> None:
    if as_json:
        OUT.print_json(json.dumps(asdict(summary)))
        return
    counts = ", ".join(f"{name} {count}" for name, count in summary.statuses.items())
    OUT.print(f"{summary.reason}: {counts or 'nothing was proposed'}", markup=False, soft_wrap=True)
    OUT.print(f"generation {summary.generation}: {state.published}", soft_wrap=True)
    OUT.print(f"report: {state.root / 'report.html'}", soft_wrap=True)


def _executor(settings: LoopSettings) -> Executor:
    chosen = settings.executor
    if chosen.kind == "ray":
        return RayExecutor(chosen.address, gpus=chosen.gpus, python=chosen.python)
    return LocalExecutor()


@contextmanager
def _opened(root: Path) -> Iterator[tuple[State, Journal, Memory]]:
    state = _state(root)
    with Journal(state.root) as journal:
        known = Memory(state.memory)
        try:
            yield state, journal, known
        finally:
            known.close()


def _state(root: Path) -> State:
    if not (root / "journal.sqlite").exists():
        raise SpecPilotError("no loop here", where=root, fix="give --state of a loop that was run")
    return State(root.resolve())


def _begin(journal: Journal, state: State) -> dict[str, Any]:
    begun = journal.events("begin")
    if not begun:
        raise SpecPilotError("this loop did not begin", where=state.root, fix="run it")
    return dict(begun[0].data)


def _finished(journal: Journal) -> str:
    ended = journal.events("finished")
    return str(ended[-1].data["reason"]) if ended else ""
