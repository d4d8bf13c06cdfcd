"""What is jailed, and what comes out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.jail.limits import Limits

#: Names of variables that carry secrets; none may be set in a jail.
_SECRET_NAME = re.compile(r"(?i)(secret|password|passwd|credential|private)|(^|_)(key|token)s?$|^(AWS|AZURE|GOOGLE)_")
#: What the model API's client demands to be set; the proxy outside puts the real one in.
PLACEHOLDER = "held-by-the-proxy"


@dataclass(frozen=True)
class JailSpec:
    """One run.

    Attributes:
        inputs: folder that becomes `/in`, read-only; see `export.export`.
        command: program and arguments; runs in `/task`, a copy of `/in/tree`.
        env: the whole environment, beside PATH, HOME and the like.
        mounts: further read-only mounts, destination -> source.
        socket_dir: folder that holds `model.sock`, for agents that talk to a model; None: no way out at all.
        limits: what it may use.
        label: names the run in the environment of bwrap itself, which the agent does not have, so that a later
            controller finds a jail whose own one was killed before bwrap could watch it; empty for none.
    """

    inputs: Path
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, Path] = field(default_factory=dict)
    socket_dir: Path | None = None
    limits: Limits = field(default_factory=Limits)
    label: str = ""

    def __post_init__(self) -> None:
        for name, value in self.env.items():
            if _SECRET_NAME.search(name) and value != PLACEHOLDER:
                fix = "give it to the proxy, outside: set it where the controller starts"
                raise SpecPilotError(f"the variable {name} would bring a secret into the jail", where=name, fix=fix)


@dataclass(frozen=True)
class JailResult:
    """What a run left. All of it was made inside the jail and is not to be trusted.

    Attributes:
        ended: `exit`, the limit that ended it (`wall`, `memory`, `processes`, `output`), `killed` when SIGKILL ended
            the agent or its jail, which leaves half of its work at best, or `broken` without a result.
        code: the agent's exit code; None when it was ended.
        patch: unified diff of the two folders, git's format.
        note: the agent's `note.json` or `note.md`.
        log: end of its output.
        wall_s: seconds it ran.
        peak_mib: most resident memory of all its processes that was seen.
    """

    ended: str
    code: int | None
    patch: str = ""
    note: str = ""
    log: str = ""
    wall_s: float = 0.0
    peak_mib: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the agent's program ended by itself, without an error."""
        return self.ended == "exit" and self.code == 0

    def facts(self) -> dict[str, Any]:
        """Return what the journal keeps of it, beside patch, note and log."""
        return {"ended": self.ended, "code": self.code, "wall_s": round(self.wall_s, 3), "peak_mib": self.peak_mib}
