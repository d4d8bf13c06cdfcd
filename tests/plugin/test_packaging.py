"""The package imports under one name from a checkout and from a wheel, and shadows nothing."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

FOLDERS = ("kernels", "loop", "eval", "overlays")
CHECK = """
import importlib, pathlib
import specpilot_sglang
from specpilot_sglang.overlay import load_overlay
from specpilot_sglang.assets import drafter_path
for folder in {folders!r}:
    module = importlib.import_module("specpilot_sglang." + folder)
    assert pathlib.Path(next(iter(module.__path__))).is_dir(), folder
import specpilot_sglang.eval.servers
import kernels
assert "specpilot" not in (kernels.__file__ or "none/specpilot"), "Hugging Face's kernels is shadowed"
load_overlay("smollm2-135m-dflash-cpu")
assert (drafter_path() / "model.safetensors").stat().st_size > 1e7
print(specpilot_sglang.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, repository) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(repository)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return next(out.glob("*.whl"))


def test_wheel_holds_every_file_of_the_source_folders_and_no_links(wheel, repository):
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "specpilot_sglang", *FOLDERS], cwd=repository, capture_output=True, text=True, check=True
    ).stdout.split()
    expected = {
        path if path.startswith("specpilot_sglang/") else f"specpilot_sglang/{path}"
        for path in tracked
        if not (repository / path).is_symlink()
    }
    assert expected - names == set()
    assert any(name.endswith("entry_points.txt") for name in names)


def test_wheel_imports_outside_the_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = f"import sys; sys.path.insert(0, {str(site)!r})\n" + CHECK.format(folders=FOLDERS)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(site) in done.stdout


def test_checkout_imports_from_the_repository_root(repository):
    code = CHECK.format(folders=FOLDERS)
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_top_level_folders_are_no_packages(repository):
    assert [f for f in FOLDERS if (repository / f / "__init__.py").exists()] == []


def test_launch_server_help_from_the_repository_root_shows_our_flags(repository):
    done = subprocess.run(
        [sys.executable, "-m", "sglang.launch_server", "--help"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "--speculative-plugin" in done.stdout
    assert "--specpilot-overlay" in done.stdout
