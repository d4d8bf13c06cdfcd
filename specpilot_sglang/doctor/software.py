"""Checks of Python and package versions against what SGLang pins. Reads metadata, imports none of them."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from specpilot_sglang import SGLANG_VERSION, __version__
from specpilot_sglang.doctor.check import Check, fail, ok, warn

#: Distributions whose version decides whether SGLang's kernels load.
PINNED = ("torch", "triton", "flashinfer-python", "transformers", "sglang-kernel")


def check_software() -> Iterator[Check]:
    """Check Python, this package, SGLang and the packages SGLang pins."""
    yield _python()
    yield ok("specpilot-sglang", __version__)
    yield _sglang()
    pins = _sglang_pins()
    for name in PINNED:
        yield _package(name, pins.get(name))
    yield _hugging_face_kernels()


def _python() -> Check:
    return ok("python", f"{platform.python_version()} ({sys.executable})")


def _sglang() -> Check:
    found, fix = _version("sglang"), f"pip install sglang=={SGLANG_VERSION}"
    if found is None:
        return fail("sglang", "not installed", fix)
    if found != SGLANG_VERSION:
        return fail("sglang", f"{found}, but the patches know {SGLANG_VERSION} only", fix)
    return ok("sglang", found)


def _package(name: str, pin: Requirement | None) -> Check:
    found = _version(name)
    wanted = f"{name}{pin.specifier}" if pin else name
    if found is None:
        return warn(name, "not installed", f"pip install '{wanted}'")
    if pin and not pin.specifier.contains(found, prereleases=True):
        return warn(name, f"{found}, but SGLang wants {pin.specifier}", f"pip install '{wanted}'")
    return ok(name, found)


def _hugging_face_kernels() -> Check:
    """SGLang imports Hugging Face's `kernels`; a package of that name in the current folder would shadow it."""
    try:
        ours = metadata.distribution("kernels")
    except metadata.PackageNotFoundError:
        return warn("kernels", "not installed", "pip install kernels")
    # `python -m sglang.launch_server` looks into the current folder first; this command does not.
    spec = PathFinder.find_spec("kernels", [os.getcwd(), *sys.path])
    found = spec.origin if spec else None
    if found is None or not Path(found).samefile(Path(str(ours.locate_file("kernels/__init__.py")))):
        what = f"`import kernels` finds {found or 'a plain folder'} here, not Hugging Face's package"
        return fail("kernels", what, "start the server from another folder")
    return ok("kernels", f"{ours.version}, not shadowed")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _sglang_pins() -> dict[str, Requirement]:
    try:
        lines = metadata.requires("sglang") or []
    except metadata.PackageNotFoundError:
        return {}
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(it.name): it for it in requirements if it.marker is None or it.marker.evaluate()}
