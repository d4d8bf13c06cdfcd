"""compute-sanitizer finds nothing in the W12 kernels.

Failed look-ups of driver functions, which `cuda.bindings` makes when it starts, are no errors of the kernels.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sanitize_worker import TILINGS

WORKER = Path(__file__).with_name("sanitize_worker.py")
SANITIZER = shutil.which("compute-sanitizer")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.long,
    pytest.mark.skipif(
        SANITIZER is None or not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs compute-sanitizer and compute capability 9.0",
    ),
]


@pytest.mark.parametrize("weight", [0, 1, 2], ids=["w12", "zeros", "bf16"])
@pytest.mark.parametrize(
    ("kernels", "tiling"), [*(("few", i) for i in range(len(TILINGS))), *(("many", i) for i in (0, 3))]
)
@pytest.mark.parametrize("tool", ["racecheck", "memcheck"])
def test_nothing_is_reported(tool: str, kernels: str, tiling: int, weight: int) -> None:
    options = ["--tool", tool, "--error-exitcode", "9", *(["--report-api-errors", "no"] if tool == "memcheck" else [])]
    options += ["--kernel-name", "kernel_substring=w12_"]  # not the kernels that make the weight
    command = [str(SANITIZER), *options, sys.executable, str(WORKER), kernels, "512", str(tiling), str(weight)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert "calls" in done.stdout, done.stderr[-2000:]
    assert done.returncode == 0, done.stdout[-2000:]
