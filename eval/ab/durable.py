"""Writes files that survive a power cut: content, then name, then folder, each synced before the next."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError


def write_durable(path: Path, text: str) -> None:
    """Write `text` under `path` so that after a crash either all of it or the old content is there.

    Raises:
        SpecPilotError: the file cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError as exc:
        with contextlib.suppress(OSError):
            part.unlink()
        raise SpecPilotError(f"cannot write ({exc.strerror or exc})", where=path, fix="free space or move") from exc


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, durably; figures that are not finite become null."""
    write_durable(path, json.dumps(finite(value), indent=1) + "\n")


def append_line(path: Path, value: Any) -> None:
    """Append one JSON line and sync it. A torn last line is left out by `read_lines`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as handle:
            handle.write(("\n" if torn else "") + json.dumps(finite(value)) + "\n")
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as exc:
        raise SpecPilotError(f"cannot write ({exc.strerror or exc})", where=path, fix="free space or move") from exc


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file that `append_line` wrote, without torn lines; empty when it is absent."""
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else ():
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            rows += [row] if isinstance(row, dict) else []
    return rows


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries, so that a rename in it is on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content as hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def finite(value: Any) -> Any:
    """Return JSON values with NaN and infinities as None: strict readers refuse them."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return value
