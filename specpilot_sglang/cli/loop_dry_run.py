"""`specpilot loop run --dry-run`: what an agent's jail would be, exactly, without running anything."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

import typer

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.provenance import gpu_names
from specpilot_sglang.loop.agents.presets import launch
from specpilot_sglang.loop.agents.running import jail_spec
from specpilot_sglang.loop.agents.task import make_task
from specpilot_sglang.loop.controller.deployment import cost_table, drafter_block, first_overlay
from specpilot_sglang.loop.controller.propose import values
from specpilot_sglang.loop.controller.settings import LoopSettings
from specpilot_sglang.loop.controller.state import State
from specpilot_sglang.loop.directions import choose
from specpilot_sglang.loop.directions.derive import directions
from specpilot_sglang.loop.directions.space import parameters
from specpilot_sglang.loop.jail.bubblewrap import jail_command
from specpilot_sglang.loop.jail.container import container_command
from specpilot_sglang.overlay import load_overlay

_FILTER_FD = 9


def print_dry_run(settings: LoopSettings, root: Path) -> None:
    """Print the jailed command, its mounts and environment, and the container that would do the same.

    Raises:
        SpecPilotError: the agent's program is not installed, or no direction is left.
    """
    incumbent, table = load_overlay(first_overlay(settings)), cost_table(settings)
    found = parameters(incumbent.overlay, block=drafter_block(settings), gpu=bool(gpu_names()), table=table)
    chosen = choose(directions(found, table, code=settings.agent.preset != "tuner"), {}, 1)
    if not chosen:
        raise SpecPilotError("the overlay has nothing to search", where=incumbent.path, fix="use an agent that codes")
    now = values(incumbent, chosen[0].parameters, incumbent)
    budget = {**settings.agent.limits.model_dump(), **settings.agent.caps.model_dump()}
    task = make_task(
        incumbent.overlay.name, chosen[0], now, cost=[], memory=[], history=[], budget=budget, seed=settings.seed
    )
    plan = launch(settings.agent, task)
    inputs = State(root.resolve()).agent("propose:0000:0") / "in"
    socket = Path(tempfile.gettempdir()) / "specpilot-model-XXXX" if plan.model else None
    spec = jail_spec(plan, settings.agent, inputs, socket)
    _section("agent's command, run in /task inside the jail", [shlex.join(plan.command)])
    mounts = [f"/in <- {inputs} (copy of overlays/{incumbent.overlay.name}, task.json; read-only)"]
    mounts += [f"{place} <- {source} (read-only)" for place, source in plan.mounts.items()]
    mounts += [f"/task, /tmp <- memory, {settings.agent.limits.disk_mib} MiB each"]
    mounts += [f"/run/model <- {socket} (socket of the proxy that holds the key)"] if socket else []
    _section("mounts", mounts)
    _section("environment", [f"{name}={value}" for name, value in spec.env.items()] or ["(nothing but PATH and HOME)"])
    _section("network", [f"none but {settings.agent.url} through the proxy" if plan.model else "none"])
    _section("whole command", [shlex.join(jail_command(spec, _FILTER_FD))])
    _section("the same in a container", [shlex.join(container_command(spec))])


def _section(title: str, lines: list[str]) -> None:
    typer.echo(f"# {title}")
    for line in lines:
        typer.echo(line)
    typer.echo("")
