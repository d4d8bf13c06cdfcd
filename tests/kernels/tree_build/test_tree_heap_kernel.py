"""The builder's Triton kernel builds what the torch builder builds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "interpreted_checks.py"
CHECKS = re.findall(r"^def check_(\w+)\(", SCRIPT.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def results():
    env = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("check", CHECKS)
def test_interpreted(results, check):
    assert results[check] == "ok", results[check]
