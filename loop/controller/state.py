"""Where a loop keeps its things. Agents and servers under test see none of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class State:
    """Folders and files of one loop.

    Attributes:
        root: the loop's folder.
    """

    root: Path

    @property
    def lock(self) -> Path:
        """Held by the one controller that runs."""
        return self.root / "controller.lock"

    @property
    def memory(self) -> Path:
        """The memory's file."""
        return self.root / "memory.sqlite"

    @property
    def key(self) -> Path:
        """The key that evidence is signed with."""
        return self.root / "controller.key"

    @property
    def canary(self) -> Path:
        """Times of the canary by host class."""
        return self.root / "canary.json"

    @property
    def published(self) -> Path:
        """Library folder with the present incumbent, for `SPECPILOT_OVERLAY_PATH`."""
        return self.root / "overlays"

    def generation(self, number: int) -> Path:
        """Folder of one incumbent; never changed after it was made."""
        return self.root / "generations" / f"{number:04d}"

    def agent(self, key: str) -> Path:
        """Scratch folder of an agent's run."""
        return self.root / "agents" / key.replace(":", "-")

    def candidate(self, key: str) -> Path:
        """Folder that holds the candidate of a gate job."""
        return self.root / "candidates" / key.replace(":", "-")

    def trial(self, key: str) -> Path:
        """Folder of a trial: job, evidence."""
        return self.root / "trials" / key.replace(":", "-")
