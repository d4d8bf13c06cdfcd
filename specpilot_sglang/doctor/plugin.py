"""Checks whether SGLang would find and load the plugin, and which environment variables change what is measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points

from specpilot_sglang.doctor.check import Check, fail, ok, warn

PLUGINS, PLATFORMS = "sglang.srt.plugins", "sglang.srt.platforms"
PLUGIN, PLATFORM = "specpilot", "specpilot_cpu"
DISTRIBUTION = "specpilot-sglang"
#: Variables through which the plugin itself is asked for; shown so that nobody serves it unawares.
OWN_VARIABLES = ("SPECPILOT_PLUGIN", "SPECPILOT_OVERLAY", "SPECPILOT_CONFIG", "SPECPILOT_ACTIVE")


def check_plugin(has_gpu: bool) -> Iterator[Check]:
    """Check entry points and environment.

    Args:
        has_gpu: whether an NVIDIA GPU is visible; without one the CPU platform must load too.
    """
    yield _entry_point(PLUGINS, PLUGIN)
    yield _entry_point(PLATFORMS, PLATFORM)
    yield _plugins_variable(has_gpu)
    yield _platform_variable(has_gpu)
    yield from _simulation()
    yield from _own_variables()


def _entry_point(group: str, name: str) -> Check:
    title = f"entry point {name}"
    found = [point for point in entry_points(group=group) if point.name == name]
    if not found:
        return fail(title, f"SGLang's group {group} does not list it", f"pip install {DISTRIBUTION}")
    if len(found) > 1:
        owners = ", ".join(_owner(point) for point in found)
        return fail(title, f"registered {len(found)} times, by {owners}", f"uninstall all but {DISTRIBUTION}")
    if _owner(found[0]) != DISTRIBUTION:
        return fail(title, f"taken by another package, {_owner(found[0])}", f"pip uninstall {_owner(found[0])}")
    try:
        found[0].load()
    except Exception as exc:
        # SGLang would log this and serve stock.
        return fail(
            title, f"{found[0].value} cannot be imported ({type(exc).__name__}: {exc})", "reinstall the package"
        )
    return ok(title, found[0].value)


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown package"


def _plugins_variable(has_gpu: bool) -> Check:
    value = os.environ.get("SGLANG_PLUGINS", "")
    allowed = {word.strip() for word in value.split(",") if word.strip()}
    # The same list filters platform plugins as long as SGLANG_PLATFORM is unset.
    needed = [PLUGIN] if has_gpu or os.environ.get("SGLANG_PLATFORM") else [PLUGIN, PLATFORM]
    missing = [name for name in needed if allowed and name not in allowed]
    if missing:
        whole = ",".join([*sorted(allowed), *missing])
        what = f"SGLANG_PLUGINS={value} keeps {' and '.join(missing)} out"
        return fail("SGLANG_PLUGINS", what, f"export SGLANG_PLUGINS={whole}")
    return ok("SGLANG_PLUGINS", f"{value or 'unset'}: the plugin may load")


def _platform_variable(has_gpu: bool) -> Check:
    value, name = os.environ.get("SGLANG_PLATFORM", ""), "SGLANG_PLATFORM"
    if value and value != PLATFORM:
        # SGLang drops every plugin of a package that offers another platform than the chosen one.
        return fail(name, f"{value} excludes this whole package", "unset SGLANG_PLATFORM")
    if value == PLATFORM and has_gpu:
        return fail(
            name, "the CPU platform is chosen while a GPU is visible", "unset it, or set CUDA_VISIBLE_DEVICES=''"
        )
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1":
        what = "SGLANG_USE_CPU_ENGINE=1 wants the CPU build of sgl_kernel, which is not on PyPI"
        return fail(name, what, "unset SGLANG_USE_CPU_ENGINE")
    others = [point.name for point in entry_points(group=PLATFORMS) if point.name != PLATFORM]
    if others and not value:
        return warn(
            name, f"unset, and {', '.join(others)} may want to be the platform too", f"export {name}={PLATFORM}"
        )
    return ok(name, value or "unset: chosen by the hardware")


def _simulation() -> Iterator[Check]:
    found = {key: value for key, value in os.environ.items() if key.startswith("SGLANG_SIMULATE_ACC_")}
    if _number(found.get("SGLANG_SIMULATE_ACC_LEN", "")) <= 0:
        yield ok("simulated acceptance", "off: accept lengths are real")
        return
    what = " ".join(f"{key}={value}" for key, value in sorted(found.items()))
    yield warn(
        "simulated acceptance",
        f"{what}: accept lengths and speeds would be made up",
        f"unset {' '.join(sorted(found))}",
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0  # SGLang refuses to start with it, so nothing is simulated


def _own_variables() -> Iterator[Check]:
    for key in OWN_VARIABLES:
        if value := os.environ.get(key):
            what = f"{value[:80]}: every SGLang server of this shell is affected"
            yield warn(key, what, f"unset {key}, and use --speculative-plugin")
