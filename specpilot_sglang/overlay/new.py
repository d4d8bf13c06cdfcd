"""Starts a deployment: copies an overlay under a new name."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from specpilot_sglang.errors import OverlayError
from specpilot_sglang.overlay.loader import FILE_NAME, load_overlay


def new_overlay(name: str, folder: Path, source: str = "template") -> Path:
    """Copy overlay `source` to `folder/name`, which then calls itself `name`; return the new folder.

    Raises:
        OverlayError: the name is not allowed or taken, the source is no folder's overlay, or nothing can be written.
    """
    base, target = load_overlay(source), folder / name
    if target.exists():
        raise OverlayError("this folder is there already", where=target, fix="choose another name or --folder")
    if base.path.name != FILE_NAME:
        raise OverlayError("only a folder's overlay can be copied", where=base.path, fix="give the folder")
    part = folder / f".{name}.part"
    try:
        shutil.rmtree(part, ignore_errors=True)
        kept = shutil.ignore_patterns("__pycache__", "evidence.json", "README.md" if source == "template" else "")
        shutil.copytree(base.folder, part, ignore=kept)
        text = (part / FILE_NAME).read_text(encoding="utf-8-sig")
        # The line is replaced as text, so that comments stay as they are.
        changed = re.sub(r"(?m)^name:[ \t]*[^\s#]+", f"name: {name}", text, count=1)
        (part / FILE_NAME).write_text(changed, encoding="utf-8")
        load_overlay(str(part))
        part.rename(target)
    except OSError as exc:
        raise OverlayError(f"cannot write ({exc.strerror or exc})", where=target, fix="choose --folder") from exc
    except OverlayError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return target
