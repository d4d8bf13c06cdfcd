"""Reads a unified diff and applies it exactly: every context line must match, nothing is guessed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from unidiff import PatchedFile, PatchSet
from unidiff.errors import UnidiffParseError

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.gate import paths

_MODE = re.compile(r"^(?:new file|deleted file|old|new) mode (\d+)|^index \S+ (\d{6})", re.MULTILINE)
_PLAIN_MODE = "100644"


class PatchRefusedError(SpecPilotError):
    """The patch is not one that is looked at any further."""


@dataclass(frozen=True)
class Change:
    """One file after the patch; `text` is None where it is deleted."""

    path: str
    text: str | None


def read_patch(patch: str, overlay: str, current: Callable[[str], str | None]) -> list[Change]:
    """Return what the patch makes of each file it touches.

    Args:
        patch: the unified diff, in git's format.
        overlay: the deployment's name.
        current: path inside the export -> its text, None when there is no such file.

    Raises:
        PatchRefusedError: too large, not a diff, a path that is not allowed, a link, a submodule, a binary, a mode,
            a rename, a file named twice, or lines that are not those of the file.
    """
    size = len(patch.encode("utf-8", "surrogatepass"))
    if size > paths.MAX_PATCH_BYTES:
        raise PatchRefusedError(f"the patch has {size} bytes, {paths.MAX_PATCH_BYTES} are allowed")
    try:
        files = list(PatchSet(patch))
    except (UnidiffParseError, ValueError, IndexError) as exc:
        raise PatchRefusedError(f"not a unified diff ({exc})") from exc
    if not files:
        raise PatchRefusedError("the patch changes nothing")
    if len(files) > paths.MAX_FILES:
        raise PatchRefusedError(f"the patch touches {len(files)} files, {paths.MAX_FILES} are allowed")
    changes = [_change(file, overlay, current) for file in files]
    names = [change.path for change in changes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PatchRefusedError(f"{twice[0]} is named twice")
    return changes


def _change(file: PatchedFile, overlay: str, current: Callable[[str], str | None]) -> Change:
    named = {_plain(name) for name in (file.source_file, file.target_file) if name and name != "/dev/null"}
    for name in sorted(named):
        if problem := paths.path_problem(name, overlay):
            raise PatchRefusedError(problem)
    if len(named) != 1 or file.is_rename:
        raise PatchRefusedError(f"{file.path}: delete one file and add the other, instead of renaming")
    (name,) = named
    info = "".join(file.patch_info or [])
    modes = {mode for pair in _MODE.findall(info) for mode in pair if mode}
    if modes - {_PLAIN_MODE}:
        kinds = {"120000": "a symbolic link", "160000": "a submodule or special file", "100755": "an executable file"}
        odd = sorted(modes - {_PLAIN_MODE})[0]
        raise PatchRefusedError(f"{name}: {kinds.get(odd, f'a file of mode {odd}')}")
    if file.is_binary_file or "GIT binary patch" in info:
        raise PatchRefusedError(f"{name}: a binary file")
    before = current(name)
    if file.is_added_file and before is not None:
        raise PatchRefusedError(f"{name}: said to be new, but it is there")
    if not file.is_added_file and before is None:
        raise PatchRefusedError(f"{name}: said to be there, but it is new")
    after = _applied(file, name, before or "")
    if file.is_removed_file:
        if after:
            raise PatchRefusedError(f"{name}: deleted, but not all of its lines")
        return Change(name, None)
    if len(after.encode("utf-8", "surrogatepass")) > paths.MAX_FILE_BYTES:
        raise PatchRefusedError(f"{name}: more than {paths.MAX_FILE_BYTES} bytes")
    return Change(name, after)


def _plain(name: str) -> str:
    return name[2:] if name.startswith(("a/", "b/")) else name


def _applied(file: PatchedFile, name: str, before: str) -> str:
    lines, out, at = before.splitlines(keepends=True), list[str](), 0
    for hunk in file:
        start = max(0, hunk.source_start - 1) if hunk.source_length else hunk.source_start
        if start < at or start > len(lines):
            raise PatchRefusedError(f"{name}: its hunks are out of order")
        out += lines[at:start]
        at = start
        source, target = _sides(hunk)
        if lines[at : at + len(source)] != source:
            raise PatchRefusedError(f"{name}: line {at + 1} on is not what the patch says it is")
        out += target
        at += len(source)
    return "".join([*out, *lines[at:]])


def _sides(hunk: object) -> tuple[list[str], list[str]]:
    source: list[str] = []
    target: list[str] = []
    last: list[list[str]] = []
    for line in hunk:  # type: ignore[attr-defined]
        if line.line_type == "\\":  # the line before it has no line end
            for side in last:
                side[-1] = side[-1].removesuffix("\n")
            continue
        last = {" ": [source, target], "-": [source], "+": [target]}.get(line.line_type, [])
        if not last:
            raise PatchRefusedError(f"a line of unknown kind {line.line_type!r}")
        for side in last:
            side.append(line.value)
    return source, target
