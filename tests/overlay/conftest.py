import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli(monkeypatch, capsys) -> Callable[..., Result]:
    """Runs `specpilot ARGS` in this process through the console script's own entry."""
    from specpilot_sglang.cli.main import run

    def call(*args: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["specpilot", *map(str, args)])
        with pytest.raises(SystemExit) as exit_info:
            run()
        captured = capsys.readouterr()
        return Result(int(exit_info.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def make_overlay(tmp_path) -> Callable[..., Path]:
    """Writes an overlay folder and returns it."""

    def make(text: str | bytes = "name: x\n", name: str = "x", **files: str) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "overlay.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
        for file, content in files.items():
            (folder / f"{file}.py").write_text(content)
        return folder

    return make


@pytest.fixture(autouse=True)
def _no_user_overlays(monkeypatch):
    monkeypatch.delenv("SPECPILOT_OVERLAY_PATH", raising=False)
