"""Where a symbol's source stands and what it hashes to."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import textwrap
from dataclasses import dataclass
from typing import Any

from specpilot_sglang.errors import PatchDriftError


@dataclass(frozen=True)
class Located:
    """A resolved patch target.

    Attributes:
        owner: the module or class that holds the attribute.
        name: the attribute's name in `owner`.
        raw: the value as stored in the owner's namespace (a classmethod or staticmethod object stays one).
        file: path of the source file that defines it, empty when unknown.
    """

    owner: Any
    name: str
    raw: Any
    file: str


def locate(target: str) -> Located:
    """Resolve `package.module:Qual.name`.

    Raises:
        PatchDriftError: the module cannot be imported or has no such symbol.
    """
    module_name, _, qualname = target.partition(":")
    *parents, name = qualname.split(".")
    try:
        owner: Any = importlib.import_module(module_name)
        for part in parents:
            owner = getattr(owner, part)
        raw = inspect.getattr_static(owner, name)
    except (ImportError, AttributeError) as exc:
        raise PatchDriftError(
            f"patch target {qualname!r} does not exist ({exc})",
            where=module_name,
            fix="install the SGLang release this plugin was written against, sglang==0.5.23",
        ) from exc
    return Located(owner, name, raw, _source_file(raw, module_name))


def fingerprint(obj: Any) -> str:
    """Return 16 hex digits of the SHA-256 of the source text of a function, method or class.

    Indentation of the whole block and trailing blanks do not count. The text is hashed, not the
    syntax tree, because `ast.dump` differs between Python versions.
    """
    text = textwrap.dedent(inspect.getsource(unwrap(obj)))
    text = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def unwrap(raw: Any) -> Any:
    """Return the function behind a classmethod, staticmethod or property object."""
    if isinstance(raw, (classmethod, staticmethod)):
        return raw.__func__
    return raw.fget if isinstance(raw, property) else raw


def _source_file(raw: Any, module_name: str) -> str:
    try:
        return inspect.getsourcefile(unwrap(raw)) or module_name
    except TypeError:
        return module_name
