"""The bubblewrap command line of a jail.

Mounts: the system's folders and this Python, read-only; `/in` (the export), read-only; `/task` and `/tmp`, two
folders in memory of limited size; a fresh `/proc` and `/dev`; the folder of the model proxy's socket when there is one.

Two ways, chosen by who runs the controller. As root, no user namespace: the agent becomes a user id of its own, which
no other process has, so that the limit on processes counts its own only. As an ordinary user, a user namespace, where
the kernel counts the same way. Either way no capability is left and a seccomp filter refuses new namespaces.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.jail.limits import MIB, Limits
from specpilot_sglang.loop.jail.spec import JailSpec

_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin")
_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs", "/etc/localtime")
_INSIDE = "/in/inside.py"
#: First of 2^20 user ids that this machine's accounts do not use; one is drawn for each jail.
_FIRST_UID = 0x70000000
#: Seconds of CPU between SIGXCPU, which tells a limit from a kill, and SIGKILL.
_CPU_GRACE_S = 2
PATH = "/usr/local/bin:/usr/bin:/bin"


def jail_command(spec: JailSpec, seccomp_fd: int, *, root: bool | None = None) -> list[str]:
    """Return the whole command line.

    Args:
        spec: the run; `run.json` is in its `inputs`.
        seccomp_fd: open file of the filter.
        root: whether the controller is root; found out by default.

    Raises:
        SpecPilotError: a program that the jail needs is not installed.
    """
    as_root = os.geteuid() == 0 if root is None else root
    uid = _FIRST_UID + secrets.randbelow(2**20) if as_root else 65534
    return [
        *(_tool("bwrap"), *_namespaces(as_root), "--die-with-parent", "--new-session", "--hostname", "jail"),
        *_readable(),
        *_mounted(spec),
        *_writable(spec.limits),
        *_environment(spec),
        *("--seccomp", str(seccomp_fd), "--chdir", "/task", "--"),
        *(_become(uid) if as_root else ()),
        *_limited(spec.limits),
        *(python(), "-I", "-S", "-B", _INSIDE),
    ]


def python() -> str:
    """Return the Python that runs inside: this one, without its virtual environment."""
    return os.path.realpath(sys.executable)


def _namespaces(as_root: bool) -> tuple[str, ...]:
    if not as_root:
        return ("--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL")
    # All but the user namespace. The three capabilities are given up again by setpriv, one step later.
    apart = ("ipc", "pid", "net", "uts", "cgroup")
    kept = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
    return (*(f"--unshare-{n}" for n in apart), "--cap-drop", "ALL", *(x for c in kept for x in ("--cap-add", c)))


def _become(uid: int) -> tuple[str, ...]:
    ids = ("--reuid", str(uid), "--regid", str(uid), "--clear-groups")
    return (_tool("setpriv"), *ids, "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs")


def _readable() -> list[str]:
    arguments: list[str] = []
    for place in _SYSTEM:
        if os.path.islink(place):
            arguments += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            arguments += ["--ro-bind", place, place]
    for place in _FILES:
        arguments += ["--ro-bind-try", place, place]
    home = os.path.realpath(sys.base_prefix)
    if not home.startswith("/usr/"):
        arguments += [*parents(home), "--ro-bind", home, home]
    if not python().startswith((home + "/", "/usr/")):
        arguments += [*parents(python()), "--ro-bind", python(), python()]
    return arguments


def parents(place: str) -> list[str]:
    """Return `--dir` arguments for the folders above `place`; bwrap would make them as closed as they are outside."""
    return [x for folder in reversed(Path(place).parents[:-1]) for x in ("--dir", str(folder))]


def _mounted(spec: JailSpec) -> list[str]:
    arguments = ["--dir", "/in", "--ro-bind", str(spec.inputs), "/in"]
    for place, source in spec.mounts.items():
        arguments += [*parents(place), "--ro-bind", str(source), place]
    if spec.socket_dir is not None:
        arguments += [*parents("/run/model"), "--ro-bind", str(spec.socket_dir), "/run/model"]
    return arguments


def _writable(limits: Limits) -> list[str]:
    size = str(limits.disk_mib * MIB)
    folders = [x for place in ("/task", "/tmp") for x in ("--perms", "1777", "--size", size, "--tmpfs", place)]
    # A writable /dev/shm would be a third folder, without a limit.
    return ["--proc", "/proc", "--dev", "/dev", *folders, "--remount-ro", "/dev"]


def _environment(spec: JailSpec) -> list[str]:
    base = {"PATH": PATH, "HOME": "/task", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "USER": "agent"}
    return ["--clearenv", *(x for name, value in {**base, **spec.env}.items() for x in ("--setenv", name, value))]


def _limited(limits: Limits) -> tuple[str, ...]:
    most = {
        "as": limits.address_space_mib * MIB,
        "cpu": limits.cpu_s,
        "fsize": limits.disk_mib * MIB,
        "nproc": limits.processes,
        "nofile": limits.open_files,
        "memlock": MIB,
        "core": 0,
    }
    hard = {**most, "cpu": limits.cpu_s + _CPU_GRACE_S}
    return (_tool("prlimit"), *(f"--{name}={value}:{hard[name]}" for name, value in most.items()))


def _tool(name: str) -> str:
    found = shutil.which(name, path=f"{PATH}:/usr/sbin:/sbin")
    if found is None:
        fix = "install bubblewrap and util-linux; without a jail no agent is run"
        raise SpecPilotError(f"{name} is not installed", where=name, fix=fix)
    return found
