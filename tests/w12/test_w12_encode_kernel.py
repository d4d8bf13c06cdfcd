"""The GPU encoder equals the codec in torch, plane by plane: in Triton's interpreter, and on a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("encode_worker.py")


def compare(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, str(WORKER), *arguments], capture_output=True, text=True, timeout=300, cwd=WORKER.parent
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "DIFFERENT" not in done.stdout, done.stdout
    assert done.stdout.count("compared") == 24


def test_every_field_in_the_interpreter() -> None:
    compare()


@pytest.mark.gpu
def test_every_field_on_the_gpu() -> None:
    compare("cuda")
