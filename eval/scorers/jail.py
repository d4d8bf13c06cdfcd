"""Runs untrusted Python in a bubblewrap jail: no network, no processes, no files of this machine but Python's own.

Fails closed: without bwrap, prlimit or user namespaces nothing is run and an error says so.
"""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.scorers.seccomp import no_new_processes

#: System folders that hold Python's shared libraries and prlimit; links are kept as links.
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin")
_PROGRAM = "/run/program.py"
_MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        wall_s: seconds until everything is killed.
        cpu_s: processor seconds.
        memory_mib: address space.
        files_mib: size of its only writable folder, and of its output.
    """

    wall_s: float = 10.0
    cpu_s: int = 8
    memory_mib: int = 768
    files_mib: int = 16


@dataclass(frozen=True)
class Outcome:
    """Whether the program ran to its very end, and if not, why."""

    passed: bool
    reason: str


def require_jail() -> None:
    """Raise `SpecPilotError` unless programs can be jailed on this machine."""
    problem = _problem()
    if problem:
        fix = "install bubblewrap and util-linux and allow unprivileged user namespaces"
        raise SpecPilotError(f"generated code is not run without a jail: {problem}", where="bwrap", fix=fix)


def run_jailed(source: str, limits: Limits | None = None) -> Outcome:
    """Run Python source in the jail with the standard library only.

    Passed means that its last line was reached: leaving early, by `sys.exit(0)` too, does not pass.

    Raises:
        SpecPilotError: programs cannot be jailed here.
    """
    require_jail()
    return _run(source, limits or Limits())


def _run(source: str, limits: Limits) -> Outcome:
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="specpilot-jail-") as name:
        folder = Path(name)
        (folder / "program.py").write_text(_with_token(source, token), encoding="utf-8", errors="surrogatepass")
        (folder / "filter.bpf").write_bytes(no_new_processes())
        with (folder / "filter.bpf").open("rb") as rules, (folder / "out").open("wb") as out:
            command = _command(folder / "program.py", limits, rules.fileno())
            try:
                code = _wait(command, limits, rules.fileno(), out.fileno())
            except subprocess.TimeoutExpired:
                return Outcome(False, f"not done after {limits.wall_s:g} s")
        output = (folder / "out").read_bytes()
    if code == 0 and output.rstrip().endswith(token.encode()):
        return Outcome(True, "passed")
    return Outcome(False, _why(code, output))


def _wait(command: list[str], limits: Limits, rules: int, out: int) -> int:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        pass_fds=(rules,),
        timeout=limits.wall_s,
        env={},
        check=False,
    ).returncode


def _with_token(source: str, token: str) -> str:
    return f"{source}\n\nimport sys as _sys\n_sys.stdout.write({token!r})\n_sys.stdout.flush()\n"


def _command(program: Path, limits: Limits, rules: int) -> list[str]:
    bwrap, prlimit = shutil.which("bwrap"), shutil.which("prlimit")
    assert bwrap is not None
    assert prlimit is not None
    python = os.path.realpath(sys.executable)
    size = str(limits.files_mib * _MIB)
    alone = ("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
    who = ("--uid", "65534", "--gid", "65534", "--hostname", "jail")
    files = ("--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/tmp", "--chdir", "/tmp")
    variables = ("--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/tmp")
    most = (f"--as={limits.memory_mib * _MIB}", f"--cpu={limits.cpu_s}", f"--fsize={size}", "--nofile=64", "--core=0")
    return [
        *(bwrap, *alone, *who, *_readable(python), "--ro-bind", str(program), _PROGRAM, *files, *variables),
        *("--seccomp", str(rules), "--", prlimit, *most, "--nproc=16", python, "-I", "-S", "-B", _PROGRAM),
    ]


def _readable(python: str) -> list[str]:
    arguments: list[str] = []
    for place in _SYSTEM:
        if os.path.islink(place):
            arguments += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            arguments += ["--ro-bind", place, place]
    arguments += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    home = os.path.realpath(sys.base_prefix)
    if not home.startswith("/usr/") and home != "/usr":
        arguments += ["--ro-bind", home, home]
    if not python.startswith((home + "/", "/usr/")):
        arguments += ["--ro-bind", python, python]
    return arguments


def _why(code: int, output: bytes) -> str:
    if code == 0:
        return "it ended before its tests did"
    lines = [line.strip() for line in output[-4000:].decode("utf-8", "replace").splitlines() if line.strip()]
    return (lines[-1] if lines else f"exit code {code}")[:200]


@functools.cache
def _problem() -> str:
    """Return why programs cannot be jailed here, found by jailing one; empty when they can."""
    for tool in ("bwrap", "prlimit"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    outcome = _run("pass", Limits())
    return "" if outcome.passed else f"a trial run failed ({outcome.reason})"
