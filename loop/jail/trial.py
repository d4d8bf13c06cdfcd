"""Proves, by jailing a probe, that this machine can jail agents; without the proof none is run."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.jail.bubblewrap import python
from specpilot_sglang.loop.jail.limits import Limits
from specpilot_sglang.loop.jail.running import run_in_jail
from specpilot_sglang.loop.jail.spec import JailSpec

_LIMITS = Limits(wall_s=30.0, cpu_s=20, memory_mib=512, processes=16, disk_mib=8, output_mib=1)

#: Prints what a jail must have; run by the jail's own Python.
_PROBE = """
import json, os, resource, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
def writes(place):
    try:
        open(place + "/probe", "w").close()
        return True
    except OSError:
        return False
def forks():
    n = 0
    try:
        while n < 64:
            if os.fork() == 0:
                import time
                time.sleep(3)
                os._exit(0)
            n += 1
    except OSError:
        pass
    return n
def reaches():
    try:
        socket.create_connection(("1.1.1.1", 53), timeout=1).close()
        return True
    except OSError:
        return False
usr = os.statvfs("/task")
print(json.dumps({
    "is not root": os.getuid() != 0,
    "has no capability": all(int(status[f"Cap{n}"], 16) == 0 for n in ("Inh", "Prm", "Eff", "Amb")),
    "has a seccomp filter": status["Seccomp"].strip() == "2",
    "gains no privileges": status["NoNewPrivs"].strip() == "1",
    "sees few processes": sum(p.isdigit() for p in os.listdir("/proc")) < 8,
    "has a network of its own": [i[1] for i in socket.if_nameindex()] == ["lo"] and not reaches(),
    "has a clear environment": set(os.environ) <= {"PATH", "HOME", "TMPDIR", "LANG", "USER", "PWD", "LC_CTYPE"},
    "cannot write the system": not any(map(writes, ("/usr", "/in", "/etc", "/dev", "/dev/shm", "/in/tree"))),
    "has a small disk": writes("/task") and usr.f_blocks * usr.f_frsize <= 8 * 2**20,
    "is limited in memory": resource.getrlimit(resource.RLIMIT_AS)[1] != resource.RLIM_INFINITY,
    "is limited in time": resource.getrlimit(resource.RLIMIT_CPU)[1] != resource.RLIM_INFINITY,
    "is limited in processes": forks() < 16,
}))
"""


def require_jail() -> None:
    """Raise `SpecPilotError` unless a probe finds every wall of the jail standing."""
    problem = _problem()
    if problem:
        fix = "install bubblewrap 0.8 and util-linux, allow user namespaces, or use a container (--dry-run prints it)"
        raise SpecPilotError(f"agents are not run without a jail: {problem}", where="bwrap", fix=fix)


def probe(*, root: bool | None = None) -> dict[str, bool]:
    """Return what the probe found inside a jail.

    Raises:
        SpecPilotError: the jail did not start.
    """
    with tempfile.TemporaryDirectory(prefix="specpilot-probe-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "tree").mkdir()
        spec = JailSpec(folder, (python(), "-I", "-S", "-c", _PROBE), limits=_LIMITS)
        result = run_in_jail(spec, root=root)
    if not result.ok:
        raise SpecPilotError(f"the jail did not start ({result.ended}): {result.log[-300:]}", where="bwrap")
    return {str(k): bool(v) for k, v in json.loads(result.log).items()}


@functools.cache
def _problem() -> str:
    try:
        found = probe()
    except SpecPilotError as exc:
        return exc.line()
    except ValueError as exc:
        return f"the probe printed no result ({exc})"
    return ", ".join(f"not true: it {name}" for name, ok in found.items() if not ok)
