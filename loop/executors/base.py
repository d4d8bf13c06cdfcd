"""What an executor does: submit, poll, cancel, by ids that make asking twice asking once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.durable import write_json


class JobStatus(StrEnum):
    """Where a submitted job stands."""

    UNKNOWN = "unknown"  # never submitted, or forgotten
    RUNNING = "running"
    ENDED = "ended"  # whether its result is there is another question
    LOST = "lost"  # its host or process went away


@dataclass(frozen=True)
class JobSpec:
    """One job.

    Attributes:
        key: the journal's key.
        attempt: 1, 2, ... ; a lost job's next attempt is a submission of its own.
        entry: `module:function`; called with the payload, returns JSON values.
        payload: JSON values.
        folder: the job's folder, the same path on every host; holds `job.json`, `result.json` and `job.log`.
        python_path: further folders for imports.
    """

    key: str
    attempt: int
    entry: str
    payload: dict[str, Any]
    folder: Path
    python_path: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The submission id: the same for the same job and attempt, on any executor."""
        digest = hashlib.sha256(json.dumps([self.key, self.attempt, str(self.folder)]).encode()).hexdigest()
        return f"specpilot-{digest[:20]}-{self.attempt}"

    def write(self) -> Path:
        """Write `job.json` and return its path."""
        path = self.folder / "job.json"
        row = {"key": self.key, "attempt": self.attempt, "entry": self.entry, "payload": self.payload}
        write_json(path, {**row, "python_path": list(self.python_path)})
        return path

    def result(self) -> dict[str, Any] | None:
        """Return this attempt's result; None when there is none yet. A former attempt may still have written its own.

        Raises:
            SpecPilotError: the result's file is damaged.
        """
        path = self.folder / "result.json"
        try:
            found = dict(json.loads(path.read_text(encoding="utf-8")))
            return found if found["attempt"] == self.attempt else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as exc:
            raise SpecPilotError(f"cannot read a job's result ({exc})", where=path, fix="delete it and resume") from exc


class Executor(Protocol):
    """Runs jobs; a job that ended left `result.json` or failed."""

    name: str

    def submit(self, job: JobSpec) -> None:
        """Start the job unless it was started under this id."""

    def poll(self, job: JobSpec) -> JobStatus:
        """Return where the job stands."""

    def cancel(self, job: JobSpec) -> None:
        """End the job and all its processes; nothing happens when it ended already."""

    def close(self) -> None:
        """End what is still running."""
