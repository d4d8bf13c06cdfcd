"""What all parts of the controller share, and how any of its jobs is run: once, under a lease, with retries."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.agents.running import Outcome, run_agent
from specpilot_sglang.loop.agents.settings import AgentSettings
from specpilot_sglang.loop.agents.task import Task
from specpilot_sglang.loop.controller import trial
from specpilot_sglang.loop.controller.deployment import cost_table
from specpilot_sglang.loop.controller.pins import ControllerChangedError
from specpilot_sglang.loop.controller.settings import LoopSettings
from specpilot_sglang.loop.controller.state import State
from specpilot_sglang.loop.cost.gaps import gaps
from specpilot_sglang.loop.executors import Executor
from specpilot_sglang.loop.journal import Job, JobState, Journal
from specpilot_sglang.loop.judge import Verdict
from specpilot_sglang.loop.memory import Memory
from specpilot_sglang.overlay import LoadedOverlay


@dataclass(frozen=True)
class Parts:
    """What can be put in place of the real thing in tests.

    Attributes:
        agent: runs one agent.
        trial_entry: `module:function` of a trial's job.
        rejudge: the controller's own verdict on a trial's folder, and its figures.
        python_path: folders for the job's imports.
    """

    agent: Callable[[AgentSettings, Task, LoadedOverlay, Path], Outcome] = run_agent
    trial_entry: str = trial.ENTRY
    rejudge: Callable[[Path], tuple[Verdict, dict[str, Any]]] = trial.rejudge
    python_path: tuple[str, ...] = ()


@dataclass
class Context:
    """One running controller."""

    settings: LoopSettings
    state: State
    journal: Journal
    memory: Memory
    executor: Executor
    parts: Parts = field(default_factory=Parts)
    watch: Callable[..., None] = lambda *args, **facts: None
    worker: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")

    def cost_rows(self) -> list[dict[str, Any]]:
        """Return the cost table's terms, largest loss first."""
        table = cost_table(self.settings)
        names = ("name", "batch", "width", "seconds", "ceiling_s", "bound", "gap_s", "overhead_s", "loss_s")
        return [{name: getattr(term, name) for name in names} for term in gaps(table)] if table else []

    def run(self, key: str, work: Callable[[Job], dict[str, Any]], *, ttl_s: float) -> Job:
        """Return the finished job, running it when it is not: a result that is in the journal is never made again.

        Raises:
            SpecPilotError: the infrastructure failed more often than is tried.
        """
        while True:
            job = self.journal.job(key)
            assert job is not None
            if job.state in (JobState.DONE, JobState.FAILED):
                return job
            if job.state is JobState.ABANDONED:
                raise SpecPilotError(f"given up after {job.retries} failures: {job.result['reason']}", where=key)
            held = self.journal.lease(key, self.worker, ttl_s)
            if held is None:
                raise SpecPilotError(f"{job.worker} holds this job", where=key, fix="end the other controller")
            self.watch("start", job=held)
            try:
                result = work(held)
            except ControllerChangedError as exc:
                self.journal.infra(held, exc.line(), most=self.settings.infra_retries, counted=False)
                raise
            except SpecPilotError as exc:
                failed = self.journal.infra(held, exc.line(), most=self.settings.infra_retries)
                self.watch("infra", job=failed, reason=exc.line())
                continue
            done = self.journal.finish(held, result)
            self.watch("done", job=done)
            return done
