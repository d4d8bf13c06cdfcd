"""Finds overlays by name or path and loads them with a hash of everything they consist of."""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from specpilot_sglang.errors import OverlayError
from specpilot_sglang.overlay.problems import InvalidOverlayError, Problem
from specpilot_sglang.overlay.schema import Overlay, PatchRef
from specpilot_sglang.overlay.validation import build_overlay, suggest
from specpilot_sglang.overlay.yamlfile import Loc, YamlFile, key_path, read_yaml

#: More folders to look for overlays in, separated like PATH.
PATH_VARIABLE = "SPECPILOT_OVERLAY_PATH"
FILE_NAME = "overlay.yaml"
MAX_FOLDER_FILES = 256
MAX_FOLDER_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class LoadedOverlay:
    """An overlay as it is on disk.

    Attributes:
        overlay: the validated content.
        path: the YAML file.
        sha256: hex digest over names and bytes of overlay.yaml and every other file of its folder
            (without `__pycache__`); a YAML file of another name stands alone and is hashed alone.
        folder: the folder that patches are relative to.
        lines: line of every key in the file, for error messages.
    """

    overlay: Overlay
    path: Path
    sha256: str
    folder: Path
    lines: Mapping[Loc, int] = field(default_factory=dict, repr=False, compare=False)

    def where(self, *loc: str | int) -> str:
        """Return `file:line:key` of `loc`, or `file:key` when the file does not spell it out."""
        line = self.lines.get(loc, 0)
        return Problem(line, key_path(loc), "", "").where(self.path)


def load_overlay(spec: str) -> LoadedOverlay:
    """Load the overlay called `spec`, or the folder or YAML file at path `spec`.

    A word without a path separator is a name; write `./x` for a folder `x` of the current directory.

    Raises:
        OverlayError: unknown name, or a file or folder that cannot be used (InvalidOverlayError).
    """
    if _is_path(spec):
        return load_path(Path(spec))
    found = [folder for folder in overlay_folders() if folder.name == spec]
    if len(found) > 1:
        what = f"the overlay name {spec!r} exists {len(found)} times: {', '.join(map(str, found))}"
        raise OverlayError(what, fix="pass the path of the one you mean")
    if not found:
        raise _unknown_name(spec)
    return load_named(found[0])


def load_named(folder: Path) -> LoadedOverlay:
    """Load a library folder, whose name and the overlay's `name` must agree."""
    loaded = load_path(folder)
    if loaded.overlay.name != folder.name:
        what = f"the overlay calls itself {loaded.overlay.name!r} but its folder is {folder.name!r}"
        line = loaded.lines.get(("name",), 0)
        raise InvalidOverlayError(loaded.path, [Problem(line, "name", what, "give both the same name")])
    return loaded


def load_path(path: Path) -> LoadedOverlay:
    """Load the overlay folder or YAML file at `path`."""
    path = path.expanduser()
    file = path / FILE_NAME if path.is_dir() else path
    content = read_yaml(file)
    overlay = build_overlay(file, content)
    folder = file.parent
    whole_folder = file.name == FILE_NAME
    if overlay.patches and not whole_folder:
        fix = f"put it into a folder of its own as {FILE_NAME}"
        raise _problem(file, content, ("patches",), "only a folder's overlay.yaml may have patches", fix)
    files = dict(_folder_files(folder, file)) if whole_folder else {}
    for i, patch in enumerate(overlay.patches):
        _check_patch(file, content, ("patches", i), patch, files)
    return LoadedOverlay(overlay, file, _digest({**files, FILE_NAME: content.raw}), folder, content.lines)


def overlay_folders() -> list[Path]:
    """Return every overlay folder of the library: those shipped, then those of SPECPILOT_OVERLAY_PATH."""
    roots = [Path(str(root)) for root in _shipped_roots()]
    for entry in os.environ.get(PATH_VARIABLE, "").split(os.pathsep):
        if entry and not Path(entry).expanduser().is_dir():
            raise OverlayError(f"{entry} is not a folder", where=PATH_VARIABLE, fix="correct or unset the variable")
        roots += [Path(entry).expanduser()] if entry else []
    return [child for root in roots for child in sorted(root.iterdir()) if (child / FILE_NAME).is_file()]


def _shipped_roots() -> Iterator[object]:
    # `overlays/` has no __init__.py, so importlib.resources answers with a MultiplexedPath over plain folders.
    anchor = resources.files("specpilot_sglang.overlays")
    yield from sorted({Path(str(child)).parent for child in anchor.iterdir()})


def _is_path(spec: str) -> bool:
    return os.sep in spec or spec.startswith((".", "~")) or spec.endswith((".yaml", ".yml"))


def _unknown_name(spec: str) -> OverlayError:
    names = sorted(folder.name for folder in overlay_folders())
    if Path(spec).is_dir():
        return OverlayError(f"no overlay is called {spec!r}", fix=f"for the folder of that name write ./{spec}")
    # Names are long (model, drafter, machine) and people type a part of them, hence the low threshold.
    what = f"no overlay is called {spec!r}{suggest(spec, names, cutoff=0.35)}"
    return OverlayError(what, fix=f"use one of {', '.join(names)}, a path, or add a folder to {PATH_VARIABLE}")


def _folder_files(folder: Path, file: Path) -> Iterator[tuple[str, bytes]]:
    count = size = 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if "__pycache__" in path.relative_to(folder).parts:
            continue
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            what = f"{name} in the overlay's folder is a link or special file"
            raise InvalidOverlayError(file, [Problem(0, "", what, "replace it with a regular file")])
        if path.is_dir():
            continue
        count, size = count + 1, size + path.stat().st_size
        if count > MAX_FOLDER_FILES or size > MAX_FOLDER_BYTES:
            what = f"the folder holds more than {MAX_FOLDER_FILES} files or {MAX_FOLDER_BYTES >> 20} MiB"
            raise InvalidOverlayError(file, [Problem(0, "", what, "give the overlay a folder of its own")])
        yield name, path.read_bytes()


def _digest(files: Mapping[str, bytes]) -> str:
    # Lengths come first so that moving bytes between a name and a content changes the hash.
    total = hashlib.sha256()
    for name, data in sorted(files.items()):
        encoded = name.encode()
        total.update(len(encoded).to_bytes(8, "big") + encoded + len(data).to_bytes(8, "big") + data)
    return total.hexdigest()


def _check_patch(file: Path, content: YamlFile, loc: Loc, patch: PatchRef, files: Mapping[str, bytes]) -> None:
    """Check, without running it, that the patch's file is in the folder and defines the function."""
    if patch.file not in files:
        known = [name for name in files if name.endswith(".py")]
        what = f"{patch.file} is not in the overlay's folder{suggest(patch.file, known)}"
        raise _problem(file, content, (*loc, "file"), what, "add the file or correct its name")
    try:
        tree = ast.parse(files[patch.file])
    except (SyntaxError, ValueError) as exc:
        what = f"{patch.file} is not valid Python ({exc})"
        raise _problem(file, content, (*loc, "file"), what, "correct the file") from exc
    known = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if patch.function not in known:
        what = f"{patch.file} defines no function {patch.function!r}{suggest(patch.function, known)}"
        raise _problem(file, content, (*loc, "function"), what, "define it at the top of the module")


def _problem(file: Path, content: YamlFile, loc: Loc, what: str, fix: str) -> InvalidOverlayError:
    return InvalidOverlayError(file, [Problem(content.line(loc), key_path(loc), what, fix)])
