"""The whole gate: patch, paths, code, overlay schema; and the candidate's folder when all of them pass."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from specpilot_sglang.errors import OverlayError
from specpilot_sglang.loop.gate.code import code_problems
from specpilot_sglang.loop.gate.patch import Change, PatchRefusedError, read_patch
from specpilot_sglang.overlay import LoadedOverlay, Overlay, load_overlay, validate_supported

EVIDENCE = "evidence.json"


@dataclass(frozen=True)
class GateReport:
    """What the gate found.

    Attributes:
        reasons: why the patch is refused; empty when it passes.
        folder: the candidate's folder; None when it is refused.
        sha256: hash of the candidate's overlay.
        touched: paths that the patch touches, as it spells them.
    """

    reasons: tuple[str, ...]
    folder: Path | None = None
    sha256: str = ""
    touched: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the candidate goes on to the judge."""
        return not self.reasons

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values, without the folder."""
        return {"ok": self.ok, "reasons": list(self.reasons), "sha256": self.sha256, "touched": list(self.touched)}


def check_patch(patch: str, incumbent: LoadedOverlay, out: Path) -> GateReport:
    """Check a patch against the incumbent's folder, and build the candidate when it passes.

    `kernels/<id>/x` of an export is `kernels/x` in the overlay's folder, where the hash that servers attest covers it.

    Args:
        patch: what the agent left.
        incumbent: the overlay that the agent was given.
        out: where the candidate goes, as `out/<name>`; what is there is replaced.
    """
    name = incumbent.overlay.name
    try:
        changes = read_patch(patch, name, lambda path: _read(incumbent.folder / _place(path)))
    except PatchRefusedError as exc:
        return GateReport((exc.what,))
    touched = tuple(change.path for change in changes)
    reasons = [
        reason
        for change in changes
        if change.path.endswith(".py") and change.text is not None
        for reason in code_problems(change.text, change.path)
    ]
    if reasons:
        return GateReport(tuple(reasons[:20]), touched=touched)
    folder = _build(incumbent.folder, {_place(c.path): c for c in changes}, out / name)
    try:
        candidate = load_overlay(str(folder))
        validate_supported(candidate)
    except OverlayError as exc:
        shutil.rmtree(folder)
        return GateReport((exc.line().replace(str(folder), f"overlays/{name}"),), touched=touched)
    if moved := _moved(incumbent.overlay, candidate.overlay):
        shutil.rmtree(folder)
        return GateReport((f"{moved} may not change: it says what the overlay is for",), touched=touched)
    if candidate.sha256 == load_overlay(str(_without_evidence(incumbent.folder, out))).sha256:
        shutil.rmtree(folder)
        return GateReport(("the patch changes nothing",), touched=touched)
    return GateReport((), folder, candidate.sha256, touched)


def _place(path: str) -> str:
    parts = PurePosixPath(path).parts
    return PurePosixPath("kernels" if parts[0] == "kernels" else "", *parts[2:]).as_posix()


def _read(path: Path) -> str | None:
    return path.read_bytes().decode("utf-8", "surrogateescape") if path.is_file() else None


def _build(base: Path, changes: Mapping[str, Change], folder: Path) -> Path:
    _copy(base, folder)
    for place, change in changes.items():
        target = folder / place
        if change.text is None:
            target.unlink()
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(change.text.encode("utf-8", "surrogateescape"))
    return folder


def _without_evidence(base: Path, out: Path) -> Path:
    return _copy(base, out / ".incumbent" / base.name)


def _copy(base: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("__pycache__", EVIDENCE))
    return folder


def _moved(old: Overlay, new: Overlay) -> str:
    return "name" if old.name != new.name else "match" if old.match != new.match else ""
