"""The raw files of a night: one folder a run, in it one a block and attempt."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.nightly.history import BlockRow
from specpilot_sglang.eval.nightly.plan import BlockKey

#: A block's result in its folder.
BLOCK_FILE = "block.json"


def run_folder(out: Path, run: int) -> Path:
    """Return the folder of a run's raw files and reports."""
    return out / "runs" / f"{run:05d}"


def fresh_folder(folder: Path, key: BlockKey, rows: Sequence[BlockRow]) -> tuple[int, Path]:
    """Make the folder of a new attempt at a block; return the attempt's number, from 1, and the folder."""
    # A killed attempt left a folder and no row; a user may delete folders and keep the rows.
    attempt = max([row.attempt for row in rows if row.key == key], default=0) + 1
    while (folder / f"{key.label}-{attempt}").exists():
        attempt += 1
    place = folder / f"{key.label}-{attempt}"
    try:
        place.mkdir(parents=True)
    except OSError as exc:
        raise SpecPilotError(f"cannot make the folder ({exc.strerror})", where=place, fix="choose `out:`") from exc
    return attempt, place


def prune(out: Path, keep: int) -> list[Path]:
    """Delete the raw folders of all but the newest `keep` runs; the history keeps their figures."""
    found = sorted((out / "runs").glob("[0-9]*")) if (out / "runs").is_dir() else []
    gone = found[: max(0, len(found) - keep)]
    for folder in gone:
        shutil.rmtree(folder, ignore_errors=True)
    return gone
