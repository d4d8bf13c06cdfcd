"""Where fetched and converted files live, and how a folder gets there in one step."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from specpilot_sglang.errors import SpecPilotError

_MARKER = ".specpilot.json"


def cache_dir() -> Path:
    """Return the cache folder: `$SPECPILOT_CACHE`, else `$XDG_CACHE_HOME/specpilot`, else `~/.cache/specpilot`."""
    own = os.environ.get("SPECPILOT_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specpilot"


def build_once(folder: Path, make: Callable[[Path], None], identity: dict[str, str]) -> Path:
    """Return `folder`, filled by `make` unless a complete one with the same identity is there.

    `make` writes into a scratch folder beside the target, which is renamed only when all is done, so a reader
    sees either nothing or everything; a file lock keeps two processes from doing the work twice.

    Args:
        folder: final place.
        make: fills the folder it is given.
        identity: what the content was made from; a folder with another identity is made again.

    Raises:
        SpecPilotError: when the cache cannot be written, or from `make`.
    """
    if _complete(folder, identity):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not _complete(folder, identity):
                _build(folder, make, identity)
    except OSError as exc:
        fix = "free some space or set SPECPILOT_CACHE to a folder you can write to"
        raise SpecPilotError(f"cannot write the cache ({exc.strerror or exc})", where=folder, fix=fix) from exc
    return folder


def _build(folder: Path, make: Callable[[Path], None], identity: dict[str, str]) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        scratch.chmod(0o755)
        make(scratch)
        sizes = {str(p.relative_to(scratch)): p.stat().st_size for p in sorted(scratch.rglob("*")) if p.is_file()}
        (scratch / _MARKER).write_text(json.dumps({"identity": identity, "sizes": sizes}), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _complete(folder: Path, identity: dict[str, str]) -> bool:
    try:
        marker = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
        same_sizes = all((folder / name).stat().st_size == size for name, size in marker["sizes"].items())
        return same_sizes and marker["identity"] == identity
    except (OSError, ValueError, KeyError, AttributeError):
        return False
