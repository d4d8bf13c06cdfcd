"""The Triton GEMM: exact integers, escapes, odd shapes, and tokens that do not depend on each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("triton_worker.py")


def run(interpret: str, *arguments: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": interpret}
    command = [sys.executable, str(WORKER), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "DIFFERENT" not in done.stdout, done.stdout
    assert done.stdout.count(" same") == 30


def test_in_the_interpreter() -> None:
    run("1")


@pytest.mark.gpu
@pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="needs an NVIDIA GPU")
def test_on_a_gpu() -> None:
    run("0", "cuda")
