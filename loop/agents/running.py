"""Runs one agent: export, proxy, jail; and what came out, with what it spent."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.agents.presets import Launch, launch
from specpilot_sglang.loop.agents.settings import AgentSettings
from specpilot_sglang.loop.agents.task import Task
from specpilot_sglang.loop.agents.transcript import Transcript, read_transcript
from specpilot_sglang.loop.jail.export import export
from specpilot_sglang.loop.jail.gateway import gateway
from specpilot_sglang.loop.jail.running import run_in_jail
from specpilot_sglang.loop.jail.spec import JailResult, JailSpec
from specpilot_sglang.loop.jail.trial import require_jail
from specpilot_sglang.loop.jail.usage import Ledger, Spent
from specpilot_sglang.overlay import LoadedOverlay

#: The overlay's folder that an export shows as `kernels/<id>`.
KERNELS = "kernels"


@dataclass(frozen=True)
class Outcome:
    """What one agent left and spent."""

    result: JailResult
    transcript: Transcript
    spent: Spent

    def facts(self) -> dict[str, Any]:
        """Return what the journal keeps of it, beside patch, note and log."""
        spent = {"calls": self.spent.calls, "tokens": self.spent.tokens_in + self.spent.tokens_out}
        usd = self.spent.usd if self.spent.usd is not None else self.transcript.usd
        own = {"tools": self.transcript.calls, "turns": self.transcript.turns, "error": self.transcript.error}
        return {**self.result.facts(), **spent, "usd": usd, **own}


def run_agent(settings: AgentSettings, task: Task, incumbent: LoadedOverlay, folder: Path) -> Outcome:
    """Run the agent in a fresh jail; what a killed run left in `folder` is removed first.

    Args:
        settings: which agent.
        task: what it is to do.
        incumbent: overlay that it is given a copy of.
        folder: scratch folder of this run.

    Raises:
        SpecPilotError: no jail, no program, or no key: nothing of it is the agent's fault.
    """
    require_jail()
    plan = launch(settings, task)
    key = _key(settings) if plan.model else ""
    shutil.rmtree(folder, ignore_errors=True)
    inputs = prepare(plan, task, incumbent, folder / "in")
    ledger = Ledger(folder / "spent.jsonl", settings.caps)
    with ExitStack() as stack:
        socket = None
        if plan.model and settings.url:
            socket = stack.enter_context(gateway(settings.url, key, settings.caps, ledger.path, settings.allowed_hosts))
        result = run_in_jail(jail_spec(plan, settings, inputs, socket, jail_label(folder)))
    shutil.rmtree(inputs, ignore_errors=True)
    return Outcome(result, read_transcript(result.log), ledger.spent())


def prepare(plan: Launch, task: Task, incumbent: LoadedOverlay, folder: Path) -> Path:
    """Write the jail's inputs: copies of the two folders, the task, and the preset's own files."""
    name, staging = incumbent.overlay.name, folder.with_name("staging")
    shutil.rmtree(staging, ignore_errors=True)
    overlay, kernels = staging / "overlays" / name, staging / KERNELS / name
    shutil.copytree(incumbent.folder, overlay, symlinks=True)
    has_kernels = (overlay / KERNELS).is_dir()
    if has_kernels:
        kernels.parent.mkdir()
        (overlay / KERNELS).rename(kernels)
    export(overlay, kernels if has_kernels else None, task.to_json(), folder)
    shutil.rmtree(staging)
    for file, text in plan.files.items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def jail_spec(plan: Launch, settings: AgentSettings, inputs: Path, socket: Path | None, label: str = "") -> JailSpec:
    """Return the jail's settings for one run."""
    return JailSpec(inputs, plan.command, plan.env, plan.mounts, socket, settings.limits, label)


def jail_label(folder: Path) -> str:
    """Return the label of the jail whose scratch folder is `folder`."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]


def _key(settings: AgentSettings, environment: Mapping[str, str] = os.environ) -> str:
    key = environment.get(settings.key_variable, "")
    if not key:
        fix = f"export {settings.key_variable}=... where the controller runs; agents never see it"
        raise SpecPilotError("no API key for the model proxy", where=settings.key_variable, fix=fix)
    return key
