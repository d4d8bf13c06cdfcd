"""Where a figure comes from: command line, git state, versions, machine, GPU, overlay and seeds, in every artefact."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("specpilot-sglang", "sglang", "torch", "transformers", "triton", "flashinfer-python", "numpy", "scipy")


def collect(attestation: Mapping[str, Any] | None = None, **facts: Any) -> dict[str, Any]:
    """Return JSON values that say where an artefact comes from.

    Args:
        attestation: the plugin's `GET /specpilot`; its overlay, mode and simulated acceptance are copied.
        facts: further entries, such as `seed=3`; they come last.
    """
    attested = attestation or {}
    return {
        "date_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": command_line(),
        "git": git_state(),
        "versions": {name: version(name) for name in PACKAGES if version(name)},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": gpu_names(),
        "overlay": dict(attested["overlay"]) if attested.get("overlay") else None,
        "mode": attested.get("mode"),
        "simulated_acceptance": dict(attested.get("simulated_acceptance") or {}),
        **facts,
    }


def command_line() -> str:
    """Return this process's command line; the console script by its name, not by its path."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    return shlex.join([name, *sys.argv[1:]])


def git_state() -> dict[str, Any] | None:
    """Return commit and whether tracked files differ from it; None for an installed package outside a repository."""
    folder = Path(__file__).resolve().parent
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit or _git(folder, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def busy_warning(load: float, cores: int) -> str:
    """Return a warning when other processes used the machine at the start, else nothing.

    Args:
        load: one-minute load average before the first server.
        cores: usable cores.
    """
    if load <= 0.5 * cores:
        return ""
    return (
        f"Other processes kept this machine busy (load {load:.1f} on {cores} cores at the start): distrust the speeds."
    )


def load_average() -> float:
    """Return the one-minute load average; 0 where the system has none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def version(package: str) -> str:
    """Return an installed distribution's version, empty when it is absent."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def cpu_name() -> str:
    """Return the processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpu_names() -> list[str]:
    """Return the names of NVIDIA GPUs, without starting a CUDA context in this process."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
