"""Incumbents: each generation is a folder that never changes; the present one is published, signed, and can go back."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.durable import sha256_of, sync_folder, write_json
from specpilot_sglang.loop.controller.state import State
from specpilot_sglang.loop.gate.check import EVIDENCE
from specpilot_sglang.overlay import LoadedOverlay, load_overlay


def make_generation(state: State, number: int, source: Path, evidence: Mapping[str, Any] | None) -> LoadedOverlay:
    """Copy an overlay into its generation's folder, with signed evidence; one that is there stays as it is.

    Args:
        state: the loop's folders.
        number: 0 for the overlay that the loop began with.
        source: the overlay's folder.
        evidence: why it was promoted; None for generation 0.

    Raises:
        SpecPilotError: it cannot be written or is no overlay.
    """
    folder = state.generation(number)
    if not folder.exists():
        part = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        name = load_overlay(str(source)).overlay.name
        target = part / name
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", EVIDENCE))
        if evidence is not None:
            write_json(target / EVIDENCE, sign(state, {**evidence, "files": _files(target)}))
        part.rename(folder)
        sync_folder(folder.parent)
    return load_generation(state, number)


def load_generation(state: State, number: int) -> LoadedOverlay:
    """Return the overlay of one generation; raise `SpecPilotError` when it is not there."""
    folders = [p for p in sorted(state.generation(number).glob("*")) if p.is_dir()]
    if len(folders) != 1:
        raise SpecPilotError(f"there is no generation {number}", where=state.generation(number), fix="see loop status")
    return load_overlay(str(folders[0]))


def publish(state: State, number: int) -> Path:
    """Make a generation the one that `state.published` shows, and return its folder there."""
    loaded = load_generation(state, number)
    target = state.published / loaded.overlay.name
    part, old = target.with_name(f".{target.name}.part"), target.with_name(f".{target.name}.old")
    for folder in (part, old):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(loaded.folder, part)
    if target.exists():
        target.rename(old)
    part.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)
    return target


def sign(state: State, evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evidence with this controller's signature over all of it."""
    key = _key(state)
    value = hmac.new(key, _canonical(evidence), hashlib.sha256).hexdigest()
    signature = {"algorithm": "hmac-sha256", "key": hashlib.sha256(key).hexdigest()[:16], "value": value}
    return {**evidence, "signature": signature}


def problems(state: State, folder: Path) -> list[str]:
    """Return what is wrong with a promoted overlay: signature, or files that are not those that were judged."""
    path = folder / EVIDENCE
    try:
        row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        signature = row.pop("signature")["value"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        return [f"no evidence ({exc!r})"]
    found = []
    if not hmac.compare_digest(hmac.new(_key(state), _canonical(row), hashlib.sha256).hexdigest(), signature):
        found.append("the evidence's signature is not this controller's")
    now, then = _files(folder), row.get("files") or {}
    found += [
        f"{name} is not the file that was judged" for name in sorted({*now, *then}) if now.get(name) != then.get(name)
    ]
    return found


def _files(folder: Path) -> dict[str, str]:
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and "__pycache__" not in p.parts]
    return {p.relative_to(folder).as_posix(): sha256_of(p) for p in files if p.name != EVIDENCE}


def _canonical(evidence: Mapping[str, Any]) -> bytes:
    return json.dumps(evidence, sort_keys=True, separators=(",", ":")).encode()


def _key(state: State) -> bytes:
    if not state.key.exists():
        state.root.mkdir(parents=True, exist_ok=True)
        part = state.key.with_suffix(".part")
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
        part.rename(state.key)
    return state.key.read_bytes()
