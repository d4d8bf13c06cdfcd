"""Is the benchmark client the one that the SGLang wheel installed? Compares its files with the wheel's RECORD."""

from __future__ import annotations

import base64
import hashlib
from importlib import metadata
from importlib.metadata import Distribution, PackagePath

from specpilot_sglang.errors import SpecPilotError

#: Files whose code takes the times or chooses what is sent.
CLIENT_FILES = (
    "sglang/benchmark/serving.py",
    "sglang/benchmark/utils.py",
    "sglang/benchmark/goodput.py",
    "sglang/benchmark/datasets/__init__.py",
    "sglang/benchmark/datasets/common.py",
    "sglang/benchmark/datasets/openai_dataset.py",
)


def client_problems(distribution: Distribution | None = None) -> tuple[dict[str, str], list[str]]:
    """Return the client's files with their SHA-256 (hex), and what differs from the installed wheel's RECORD.

    Raises:
        SpecPilotError: SGLang is not installed as a distribution with a RECORD.
    """
    dist = distribution or _sglang()
    listed = {str(path): path for path in dist.files or []}
    if not listed:
        raise SpecPilotError("SGLang's installation has no RECORD", where="sglang", fix="install it from its wheel")
    hashes: dict[str, str] = {}
    problems: list[str] = []
    for name in CLIENT_FILES:
        found, problem = _check(listed.get(name), name)
        if found:
            hashes[name] = found
        if problem:
            problems.append(problem)
    return hashes, problems


def _check(entry: PackagePath | None, name: str) -> tuple[str, str]:
    if entry is None or entry.hash is None:
        return "", f"{name} is not in the installed wheel's RECORD"
    try:
        digest = hashlib.sha256(entry.read_binary()).digest()
    except OSError as exc:
        return "", f"{name} cannot be read ({exc.strerror or exc})"
    recorded = base64.urlsafe_b64decode(entry.hash.value + "=" * (-len(entry.hash.value) % 4))
    if entry.hash.mode != "sha256" or recorded != digest:
        return digest.hex(), f"{name} is not the file that the wheel installed: the benchmark client was changed"
    return digest.hex(), ""


def _sglang() -> Distribution:
    try:
        return metadata.distribution("sglang")
    except metadata.PackageNotFoundError as exc:
        raise SpecPilotError("SGLang is not installed", fix="pip install sglang==0.5.23") from exc
