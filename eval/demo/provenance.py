"""Where the figures come from: versions, machine, command line, hashes of the drafter and the overlay."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from specpilot_sglang.assets.fetch import sha256_of
from specpilot_sglang.eval.demo.plan import Plan

_PACKAGES = ("specpilot-sglang", "sglang", "torch", "transformers", "triton", "flashinfer-python", "numpy")


def collect(plan: Plan, attestation: Mapping[str, Any] | None) -> dict[str, str]:
    """Return label and value pairs for the report, in reading order."""
    overlay = (attestation or {}).get("overlay") or {}
    found = {
        "date (UTC)": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "command": " ".join(["specpilot", *sys.argv[1:]]),
        "CPU": f"{cpu_name()}, {usable_cores()} cores usable",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "GPU": ", ".join(gpu_names()) or "none",
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES if version(name)},
        "target": f"{plan.model.name} {plan.about_model}".strip(),
        "drafter": plan.draft.name,
        "drafter sha256": _drafter_hash(plan.draft),
        "overlay": str(overlay.get("name") or "none attested"),
        "overlay sha256": str(overlay.get("sha256") or "-"),
    }
    simulated = (attestation or {}).get("simulated_acceptance")
    if simulated:
        found["SIMULATED ACCEPTANCE"] = str(simulated)
    return found


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


def _drafter_hash(folder: Path) -> str:
    weights = sorted(folder.glob("*.safetensors"))
    return ", ".join(sha256_of(path) for path in weights) or "no safetensors"
