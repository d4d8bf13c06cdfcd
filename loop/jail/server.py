"""The jail of a server under test: it reads the machine, writes nothing of it, and cannot see the loop's folder.

It shares the network, since the load generator and its clock stand outside; its clock, files and processes do not
reach theirs.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from specpilot_sglang.assets.cache import cache_dir
from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.servers import Server

_SECRET = re.compile(r"(?i)(key|token|secret|password|credential)")


class JailedServer(Server):
    """A server whose command runs inside bubblewrap.

    Args:
        arm: what to serve.
        log: log file, opened outside.
        hidden: folder that the server must not see; its own overlay inside of it is shown.
    """

    def __init__(self, arm: Arm, log: Path, hidden: Path) -> None:
        super().__init__(arm.server_args, env=arm.env, log=log, name=arm.name, start_timeout_s=600.0)
        self._walls = walls(hidden, Path(arm.overlay) if arm.overlay else None)
        self._env = {name: value for name, value in self._env.items() if not _SECRET.search(name)}

    @property
    def command(self) -> list[str]:
        """The full command line, bubblewrap first."""
        return [*self._walls, *super().command]


def jailed_server(arm: Arm, log: Path, *, hidden: Path) -> JailedServer:
    """Return an arm's server in its jail, not started yet."""
    return JailedServer(arm, log, hidden)


def walls(hidden: Path, overlay: Path | None) -> list[str]:
    """Return the bubblewrap command up to the server's own.

    Raises:
        SpecPilotError: bubblewrap is not installed.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        fix = "install bubblewrap, or set jail_servers: false to run overlays' code unconfined"
        raise SpecPilotError("servers under test are not run without a jail", where="bwrap", fix=fix)
    scratch = tempfile.gettempdir()
    home_cache = str(Path.home() / ".cache")
    shown = [x for place in _shown(hidden, overlay) for x in ("--ro-bind", place, place)]
    return [
        *(bwrap, "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL"),
        *("--ro-bind", "/", "/"),
        *("--dev-bind", "/dev", "/dev", "--tmpfs", "/dev/shm", "--proc", "/proc"),
        # Caches are the arm's own and end with it: one arm must not leave anything for the other.
        *("--tmpfs", scratch, *(("--tmpfs", home_cache) if os.path.isdir(home_cache) else ())),
        *("--tmpfs", str(hidden.resolve()), *shown, "--chdir", "/", "--"),
    ]


def _shown(hidden: Path, overlay: Path | None) -> list[str]:
    """Return what stands in hidden or scratch folders and is needed: the overlay, models, this package."""
    package = Path(__file__).resolve().parents[2]
    kept = [overlay, cache_dir(), Path.home() / ".cache" / "huggingface", package]
    return [str(path.resolve()) for path in kept if path is not None and path.exists()]
