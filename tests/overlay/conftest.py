from collections.abc import Callable
from pathlib import Path

import pytest


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
