"""Where the demonstration's figures come from, as label and value pairs for its report."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from specpilot_sglang.assets.fetch import sha256_of
from specpilot_sglang.eval.demo.plan import Plan
from specpilot_sglang.eval.provenance import PACKAGES, cpu_name, gpu_names, usable_cores, version


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
        **{name: version(name) for name in PACKAGES if version(name)},
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


def _drafter_hash(folder: Path) -> str:
    weights = sorted(folder.glob("*.safetensors"))
    return ", ".join(sha256_of(path) for path in weights) or "no safetensors"
