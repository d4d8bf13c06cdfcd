"""Fixtures shared by all tests: the real model and drafter, free ports, servers that leave nothing behind."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Tests must not inherit a wish for the plugin or simulated acceptance from the developer's shell.
for name in list(os.environ):
    if name.startswith(("SPECPILOT_PLUGIN", "SPECPILOT_OVERLAY", "SPECPILOT_CONFIG", "SPECPILOT_ACTIVE")):
        del os.environ[name]
    if name.startswith("SGLANG_SIMULATE_ACC"):
        del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("SPECPILOT_TEST_LONG"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="minutes long: set SPECPILOT_TEST_LONG=1"))
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture
def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder, BF16 dequantised from Q4_1."""
    from specpilot_sglang.assets import prepare_smollm2

    return prepare_smollm2()


@pytest.fixture(scope="session")
def drafter() -> Path:
    """The trained DFlash drafter that the package ships."""
    from specpilot_sglang.assets import drafter_path

    return drafter_path()


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def checks(self) -> dict:
        return {check["name"]: check for check in json.loads(self.out)["checks"]}


@pytest.fixture
def cli(monkeypatch, capsys):
    """Runs `specpilot ARGS` in this process through the console script's own entry."""
    from specpilot_sglang.cli.main import run

    def call(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["specpilot", *map(str, args)])
        with pytest.raises(SystemExit) as exit_info:
            run()
        captured = capsys.readouterr()
        return Result(int(exit_info.value.code or 0), captured.out, captured.err)

    return call
