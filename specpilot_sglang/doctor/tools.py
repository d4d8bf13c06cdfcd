"""Checks of outside programs and of network ports."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from specpilot_sglang.doctor.check import Check, fail, ok, warn

DEFAULT_PORT = 30000


def check_tools(has_gpu: bool) -> Iterator[Check]:
    """Check compilers, the agents' sandbox and ports."""
    yield _nvcc(has_gpu)
    yield _compiler()
    yield _bwrap()
    yield _free_port()
    yield _default_port()


def _nvcc(has_gpu: bool) -> Check:
    nvcc = shutil.which("nvcc") or _in_cuda_home()
    if nvcc:
        release = next((line for line in _run([nvcc, "--version"])[1].splitlines() if "release" in line), "")
        return ok("nvcc", f"{nvcc} ({release.split('release ')[-1] or 'unknown release'})")
    if not has_gpu:
        return ok("nvcc", "not found, not needed without a GPU")
    return warn("nvcc", "not found: kernels cannot be compiled on this machine", "install CUDA 13 and set CUDA_HOME")


def _in_cuda_home() -> str | None:
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home and os.access(Path(home) / "bin" / "nvcc", os.X_OK):
            return str(Path(home) / "bin" / "nvcc")
    return None


def _compiler() -> Check:
    found = shutil.which(os.environ.get("CC", "")) or shutil.which("gcc") or shutil.which("clang")
    if found:
        return ok("C compiler", found)
    return warn("C compiler", "none found: Triton cannot build its launchers", "apt install gcc")


def _bwrap() -> Check:
    """Agents run only inside bubblewrap; installed is not enough, user namespaces must be allowed too."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return warn("bwrap", "not found: `specpilot loop` cannot jail agents", "apt install bubblewrap")
    code, text = _run([bwrap, "--unshare-all", "--ro-bind", "/", "/", "true"])
    if code != 0:
        fix = "sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"
        return warn("bwrap", f"{bwrap} cannot make a sandbox here ({text.strip()[:100]})", fix)
    return ok("bwrap", f"{bwrap}, sandbox works")


def _free_port() -> Check:
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            return ok("ports", "a free one can be had on 127.0.0.1")
    except OSError as exc:
        return fail("ports", f"no port can be opened on 127.0.0.1 ({exc.strerror})", "allow loopback networking")


def _default_port() -> Check:
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex(("127.0.0.1", DEFAULT_PORT)) == 0:
            return warn(f"port {DEFAULT_PORT}", "something listens on SGLang's default port", "serve with -- --port N")
    return ok(f"port {DEFAULT_PORT}", "free")


def _run(command: list[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return 127, str(exc)
    return done.returncode, done.stdout + done.stderr
