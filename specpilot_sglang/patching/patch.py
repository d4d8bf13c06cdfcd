"""Declaration of one patch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from specpilot_sglang import SGLANG_VERSION


class Kind(StrEnum):
    """How a replacement takes the place of its target."""

    #: `replacement` is the new function; it gets the original's arguments.
    REPLACE = "replace"
    #: `replacement(original, *args, **kwargs)` decides whether and how the original runs.
    AROUND = "around"
    #: The target is a class and `replacement(original)` returns a subclass of it.
    SUBCLASS = "subclass"


@dataclass(frozen=True)
class Patch:
    """One symbol of SGLang that the plugin changes.

    Attributes:
        target: `package.module:Qual.name`.
        kind: see `Kind`.
        replacement: function or subclass factory, as `kind` says.
        fingerprint: `patching.fingerprint` of the source that the patch was written against.
        why: one line for the attestation and for readers.
        versions: SGLang releases whose source has this fingerprint.
    """

    target: str
    kind: Kind
    replacement: Callable[..., Any]
    fingerprint: str
    why: str
    versions: frozenset[str] = frozenset({SGLANG_VERSION})
