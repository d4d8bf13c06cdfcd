"""The history-free export: copies of `overlays/<id>` and `kernels/<id>`, and nothing else of the repository."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError

#: Never exported, wherever they stand.
_LEFT_OUT = shutil.ignore_patterns("__pycache__", ".git*", "evidence.json", "*.pyc")


def export(overlay: Path, kernels: Path | None, task: Mapping[str, Any], folder: Path) -> Path:
    """Write a jail's inputs into `folder` and return it.

    Args:
        overlay: folder of the overlay; becomes `tree/overlays/<its name>`.
        kernels: folder of its kernels; becomes `tree/kernels/<its name>`; None when there is none.
        task: what the agent is to do; becomes `tree/task.json`.
        folder: made anew; must not exist.

    Raises:
        SpecPilotError: a link or special file stands in the folders, or nothing can be written.
    """
    tree = folder / "tree"
    try:
        tree.mkdir(parents=True)
        for kind, source in (("overlays", overlay), ("kernels", kernels)):
            if source is not None:
                _refuse_links(source)
                shutil.copytree(source, tree / kind / source.name, ignore=_LEFT_OUT)
        (tree / "task.json").write_text(json.dumps(task, indent=1, default=str) + "\n", encoding="utf-8")
    except OSError as exc:
        raise SpecPilotError(f"cannot export ({exc})", where=folder, fix="free space or choose --state") from exc
    return folder


def _refuse_links(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            fix = "replace it with a regular file: a link could lead out of what is exported"
            raise SpecPilotError("a link or special file is not exported", where=path, fix=fix)
