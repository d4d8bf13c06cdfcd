"""Applies patches all together or not at all, and takes them back."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from specpilot_sglang.errors import PatchDriftError
from specpilot_sglang.patching.patch import Kind, Patch
from specpilot_sglang.patching.source import Located, fingerprint, locate, unwrap


@dataclass(frozen=True)
class AppliedPatch:
    """What the attestation says of one applied patch."""

    target: str
    kind: str
    fingerprint: str
    why: str


@dataclass
class _Undo:
    located: Located
    installed: Any


class PatchSet:
    """Patches that are applied together.

    Not safe against concurrent calls: apply before any worker thread runs.
    """

    def __init__(self, patches: Iterable[Patch], sglang_version: str) -> None:
        self.patches = tuple(patches)
        self._version = sglang_version
        self._undo: list[_Undo] = []

    def check(self) -> None:
        """Verify version and fingerprint of every patch without changing anything.

        Raises:
            PatchDriftError: names the file, the symbol, the version and both fingerprints.
        """
        for patch in self.patches:
            _check(patch, self._version)

    def apply(self) -> list[AppliedPatch]:
        """Apply every patch, or none if one cannot be applied.

        Raises:
            PatchDriftError: a target is missing or its source is not the known one.
            RuntimeError: the set is applied already.
        """
        if self._undo:
            raise RuntimeError("this patch set is applied already")
        self.check()
        try:
            for patch in self.patches:
                self._install(patch)
        except BaseException:
            self.undo()
            raise
        return [AppliedPatch(p.target, p.kind.value, p.fingerprint, p.why) for p in self.patches]

    def undo(self) -> None:
        """Put every original back, last applied first; harmless when nothing is applied."""
        while self._undo:
            step = self._undo.pop()
            setattr(step.located.owner, step.located.name, step.located.raw)
            _rebind(unwrap(step.installed), unwrap(step.located.raw))

    def _install(self, patch: Patch) -> None:
        located = locate(patch.target)
        original = unwrap(located.raw)
        wrapped = _wrap(patch, original)
        installed: Any = wrapped
        if isinstance(located.raw, (classmethod, staticmethod)):
            installed = type(located.raw)(wrapped)
        self._undo.append(_Undo(located, installed))
        setattr(located.owner, located.name, installed)
        _rebind(original, wrapped)


def _check(patch: Patch, version: str) -> None:
    if version not in patch.versions:
        raise PatchDriftError(
            f"patch {patch.target} knows SGLang {', '.join(sorted(patch.versions))}, not {version}",
            fix=f"pip install sglang=={max(patch.versions)}",
        )
    located = locate(patch.target)
    found = fingerprint(located.raw)
    if found != patch.fingerprint:
        raise PatchDriftError(
            f"source of {patch.target.partition(':')[2]} has fingerprint {found}, the patch was written against "
            f"{patch.fingerprint} (SGLang {version})",
            where=located.file,
            fix=f"reinstall an unmodified SGLang: pip install --force-reinstall --no-deps sglang=={version}",
        )


def _wrap(patch: Patch, original: Any) -> Any:
    if patch.kind is Kind.SUBCLASS:
        subclass = patch.replacement(original)
        if not (isinstance(subclass, type) and issubclass(subclass, original)):
            raise PatchDriftError(f"replacement of {patch.target} is not a subclass of it")
        return subclass
    hook: Callable[..., Any] = patch.replacement
    if patch.kind is Kind.AROUND:
        hook = functools.partial(patch.replacement, original)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs)

    return wrapper


def _rebind(old: Any, new: Any) -> None:
    """Replace `old` by `new` where another SGLang module holds it by `from module import name`."""
    for name, module in list(sys.modules.items()):
        if not isinstance(module, types.ModuleType) or name.partition(".")[0] not in ("sglang", "__main__"):
            continue
        for attr, value in list(vars(module).items()):
            if value is old:
                setattr(module, attr, new)
