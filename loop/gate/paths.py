"""Which files a patch may touch."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

MAX_PATCH_BYTES = 256 * 1024
MAX_FILES = 40
MAX_FILE_BYTES = 128 * 1024
MAX_PATH = 160

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_SUFFIXES = frozenset({".py", ".yaml", ".md", ".txt", ".cu", ".cuh"})
#: Files that Python, pytest or an installer run by themselves, and those that only the controller writes.
_NAMES = frozenset({"conftest.py", "sitecustomize.py", "usercustomize.py", "setup.py", "evidence.json", "__main__.py"})


def path_problem(path: str, overlay: str) -> str:
    """Return why a patch for `overlay` may not touch `path`; empty when it may.

    Args:
        path: as the patch spells it, without `a/` or `b/`.
        overlay: the deployment's name.
    """
    shown = ascii(path[:80])
    if len(path) > MAX_PATH or not path.isascii():
        return f"{shown}: a path is at most {MAX_PATH} ASCII characters"
    parts = path.split("/")
    if any(not _PART.fullmatch(part) or part == ".." for part in parts):
        return f"{shown}: not a plain relative path"
    if len(parts) < 3 or parts[0] not in ("overlays", "kernels") or parts[1] != overlay:
        return f"{shown}: outside overlays/{overlay}/ and kernels/{overlay}/"
    if parts[0] == "overlays" and parts[2] == "kernels":
        return f"{shown}: write kernels under kernels/{overlay}/"
    name = PurePosixPath(path).name
    if name in _NAMES or name.endswith(".pth"):
        return f"{shown}: a file of this name is run or read by others than the overlay"
    if PurePosixPath(path).suffix not in _SUFFIXES:
        return f"{shown}: only {', '.join(sorted(_SUFFIXES))} files"
    if name.endswith(".yaml") and path != f"overlays/{overlay}/overlay.yaml":
        return f"{shown}: overlay.yaml is the only settings file"
    return ""
