"""Chooses the overlay for a deployment, or says why none fits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from specpilot_sglang.errors import OverlayError
from specpilot_sglang.overlay.loader import LoadedOverlay, load_named, load_overlay, overlay_folders
from specpilot_sglang.overlay.schema import Match

#: The fields of a match block that name something of the deployment.
FIELDS = ("target", "drafter", "gpu", "sglang")


@dataclass(frozen=True)
class Deployment:
    """What an overlay is matched against.

    Attributes:
        target: architecture of the target model, as in its config.json.
        drafter: architecture of the drafter, or None when there is none.
        gpu: CUDA device name, or `cpu`.
        sglang: SGLang's version.
    """

    target: str
    drafter: str | None
    gpu: str
    sglang: str


@dataclass(frozen=True)
class Mismatch:
    """One field of a match block that the deployment does not meet."""

    field: str
    pattern: str
    actual: str | None

    def __str__(self) -> str:
        actual = "none" if self.actual is None else repr(self.actual)
        return f"{self.field} is {actual}, not {self.pattern!r}"


def mismatches(match: Match, deployment: Deployment) -> list[Mismatch]:
    """Return every field of `match` that `deployment` does not meet (none = it fits)."""
    return [miss for miss in _compare(match, deployment) if miss is not None]


def select_overlay(spec: str | None, deployment: Deployment) -> LoadedOverlay | None:
    """Return the overlay to use.

    Args:
        spec: a name or path; None or `auto` for the best match; `auto-or-stock` for the best match or None.
        deployment: what is served, on what.

    Raises:
        OverlayError: nothing matches (not for `auto-or-stock`), a tie, an explicit overlay that does
            not fit, or an overlay that cannot be loaded.
    """
    if spec not in (None, "auto", "auto-or-stock"):
        return _explicit(str(spec), deployment)
    candidates = [load_named(folder) for folder in overlay_folders()]
    fitting = [it for it in candidates if _automatic(it) and not mismatches(it.overlay.match, deployment)]
    if fitting:
        return _most_specific(fitting, deployment)
    if spec == "auto-or-stock":
        return None
    reasons = "; ".join(f"{it.overlay.name}: {why_not(it, deployment)}" for it in candidates)
    fix = "name an overlay or path, write one for this deployment (`template`), or allow stock with auto-or-stock"
    raise OverlayError(f"no overlay matches {_describe(deployment)} [{reasons or 'there are none'}]", fix=fix)


def why_not(loaded: LoadedOverlay, deployment: Deployment) -> str:
    """Return why `loaded` is not chosen automatically for `deployment`; empty when it would be."""
    if not _automatic(loaded):
        return "no match block, used only by name"
    return ", ".join(map(str, mismatches(loaded.overlay.match, deployment)))


def _explicit(spec: str, deployment: Deployment) -> LoadedOverlay:
    loaded = load_overlay(spec)
    if misses := mismatches(loaded.overlay.match, deployment):
        what = f"overlay {loaded.overlay.name!r} is not for this deployment: {', '.join(map(str, misses))}"
        fix = "choose another overlay, or change its match block if it has been tested there"
        raise OverlayError(what, where=loaded.where("match", misses[0].field), fix=fix)
    return loaded


def _most_specific(fitting: list[LoadedOverlay], deployment: Deployment) -> LoadedOverlay:
    ranked = sorted(fitting, key=lambda it: specificity(it.overlay.match, deployment), reverse=True)
    best = specificity(ranked[0].overlay.match, deployment)
    tied = [it for it in ranked if specificity(it.overlay.match, deployment) == best]
    if len(tied) > 1:
        names = " and ".join(f"{it.overlay.name} ({it.path})" for it in tied)
        raise OverlayError(f"{names} match {_describe(deployment)} equally well", fix="name the one to use")
    return tied[0]


def specificity(match: Match, deployment: Deployment) -> tuple[int, int]:
    """Return (fields constrained, fields that spell the actual value out); larger is more specific."""
    given = [name for name in FIELDS if getattr(match, name) is not None]
    exact = [name for name in given if getattr(match, name).removeprefix("==") == getattr(deployment, name)]
    return len(given), len(exact)


def _automatic(loaded: LoadedOverlay) -> bool:
    return any(getattr(loaded.overlay.match, name) is not None for name in FIELDS)


def _compare(match: Match, deployment: Deployment) -> Iterator[Mismatch | None]:
    for name in FIELDS:
        pattern, actual = getattr(match, name), getattr(deployment, name)
        if pattern is not None and not (actual is not None and _fits(name, pattern, actual)):
            yield Mismatch(name, pattern, actual)


def _fits(name: str, pattern: str, actual: str) -> bool:
    if name == "sglang":
        return _version_fits(pattern, actual)
    if name == "gpu":  # device names carry vendor and memory: "NVIDIA H100 80GB HBM3"
        return re.search(pattern, actual, re.IGNORECASE) is not None
    return re.fullmatch(pattern, actual) is not None


def _version_fits(specifier: str, version: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _describe(deployment: Deployment) -> str:
    drafter = deployment.drafter or "no drafter"
    return f"target {deployment.target}, {drafter}, {deployment.gpu}, SGLang {deployment.sglang}"
