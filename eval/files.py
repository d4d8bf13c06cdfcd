"""Writes a text file in one step, so that a reader never sees half of it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError


def write_whole(path: Path, text: str, *, fix: str) -> None:
    """Write `text` to `path`, folders included; raise `SpecPilotError` with `fix` when that fails."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as exc:
        with contextlib.suppress(OSError):
            part.unlink()
        raise SpecPilotError(f"cannot write ({exc.strerror or exc})", where=path, fix=fix) from exc
