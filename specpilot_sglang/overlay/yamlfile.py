"""Reads one overlay YAML file into plain data and remembers the line of every key."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, NodeEvent

from specpilot_sglang.overlay.problems import InvalidOverlayError, Problem

#: An overlay is a page of settings; anything larger is a mistake or an attack on the parser.
MAX_BYTES = 64 * 1024
MAX_DEPTH = 12

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class YamlFile:
    """An overlay file's content.

    Attributes:
        data: plain dicts, lists and scalars.
        lines: 1-based line of every key and list item, by its path.
        raw: the bytes the content was parsed from (hashed by the loader, so no second read).
    """

    data: dict[str, Any]
    lines: dict[Loc, int]
    raw: bytes

    def line(self, loc: Loc) -> int:
        """Return the line of `loc`, or of its nearest ancestor that is in the file."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, 1)


def key_path(loc: Loc) -> str:
    """Return `loc` as people write it: `patches[0].file`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_yaml(path: Path) -> YamlFile:
    """Read and parse `path`.

    Raises:
        InvalidOverlayError: not a regular file, too large, not UTF-8, not YAML, duplicate keys,
            aliases, tags, too deep, empty, or no mapping at the top level.
    """
    raw = _read_bytes(path)
    text = _decode(path, raw)
    data = _parse(path, text)
    if not isinstance(data, CommentedMap):
        kind = "empty" if data is None else f"a {_kind(data)} at the top level"
        raise _invalid(path, 1, "", f"the file is {kind}", "an overlay is a mapping that starts with `name: ...`")
    lines: dict[Loc, int] = {}
    return YamlFile(_plain(data, (), lines, path), lines, raw)


def _read_bytes(path: Path) -> bytes:
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise _invalid(path, 0, "", "not a regular file", "pass an overlay folder or its overlay.yaml")
        if info.st_size > MAX_BYTES:
            what = f"{info.st_size} bytes are more than an overlay may have ({MAX_BYTES})"
            raise _invalid(path, 0, "", what, "keep settings only; put notes into a README.md beside it")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)[: MAX_BYTES + 1]
    except FileNotFoundError:
        raise _invalid(path, 0, "", "no such file", "pass an overlay folder or its overlay.yaml") from None
    except OSError as exc:
        raise _invalid(path, 0, "", f"cannot be read ({exc.strerror})", "check the path and its permissions") from exc


def _decode(path: Path, raw: bytes) -> str:
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise _invalid(path, line, "", f"byte {exc.start} is not UTF-8", "save the file as UTF-8") from exc


def _parse(path: Path, text: str) -> Any:
    try:
        _refuse_unsafe(path, text)
        return YAML(typ="rt", pure=True).load(text)
    except DuplicateKeyError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 0
        key = str(exc.problem).split('"')[1] if '"' in str(exc.problem) else ""
        raise _invalid(path, line, key, f"the key {key!r} is given twice", "keep one of the two") from exc
    except MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        raise _syntax_error(path, text, mark.line + 1 if mark else 0, str(exc.problem or exc.context)) from exc
    except (YAMLError, ValueError, RecursionError) as exc:
        what = " ".join(str(exc).split())[:120]
        fix = "check for control characters and absurd numbers"
        raise _invalid(path, 0, "", f"not valid YAML ({what})", fix) from exc


def _syntax_error(path: Path, text: str, line: int, problem: str) -> InvalidOverlayError:
    source = text.splitlines()[line - 1] if 0 < line <= len(text.splitlines()) else ""
    if "\t" in source[: len(source) - len(source.lstrip())] or "'\\t'" in problem:
        return _invalid(path, line, "", "a tab is used for indentation", "indent with spaces")
    return _invalid(path, line, "", f"not valid YAML ({problem})", "check quotes, brackets, colons and indentation")


def _refuse_unsafe(path: Path, text: str) -> None:
    """Refuse aliases (they can expand without bound), tags and deep nesting, before anything is built."""
    depth = 0
    for event in _events(text):
        line = event.start_mark.line + 1
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _invalid(path, line, "", f"nested deeper than {MAX_DEPTH} levels", "an overlay needs three at most")
        if isinstance(event, AliasEvent) or (isinstance(event, NodeEvent) and event.anchor):
            name = event.anchor
            raise _invalid(path, line, "", f"YAML anchors and aliases ({name}) are not allowed", "write the value out")
        if getattr(event, "tag", None) and str(event.tag) != "!":
            raise _invalid(path, line, "", f"YAML tags ({event.tag}) are not allowed", "write the plain value")


def _events(text: str) -> Iterator[Any]:
    yield from YAML(typ="rt", pure=True).parse(text)


def _plain(node: Any, loc: Loc, lines: dict[Loc, int], path: Path) -> Any:
    if isinstance(node, CommentedMap):
        out: dict[str, Any] = {}
        for key, value in node.items():
            line = node.lc.key(key)[0] + 1
            if not isinstance(key, str):
                what = f"the key {key!r} is a {_kind(key)}"
                raise _invalid(path, line, str(key), what, "keys are words: quote it or rename it")
            lines[(*loc, key)] = line
            out[str(key)] = _plain(value, (*loc, key), lines, path)
        return out
    if isinstance(node, CommentedSeq):
        for i in range(len(node)):
            lines[(*loc, i)] = node.lc.item(i)[0] + 1
        return [_plain(item, (*loc, i), lines, path) for i, item in enumerate(node)]
    return _scalar(node)


def _scalar(node: Any) -> Any:
    # Round-trip scalars are subclasses that remember their spelling; strict validation wants the plain types.
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return bool(node) if type(node).__name__ == "ScalarBoolean" else node


def _kind(value: Any) -> str:
    names = {CommentedSeq: "list", bool: "boolean", int: "number", float: "number", str: "text"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), type(value).__name__)


def _invalid(path: Path, line: int, key: str, what: str, fix: str) -> InvalidOverlayError:
    return InvalidOverlayError(path, [Problem(line, key, what, fix)])
