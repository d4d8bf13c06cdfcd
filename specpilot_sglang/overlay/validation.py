"""Turns a parsed overlay file into an `Overlay`, or into problems with file, line, key and fix."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from specpilot_sglang.overlay.problems import InvalidOverlayError, Problem
from specpilot_sglang.overlay.schema import Overlay
from specpilot_sglang.overlay.server_args import refusal
from specpilot_sglang.overlay.yamlfile import YamlFile, key_path

_TYPES = {
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "tuple_type": "a list",
    "list_type": "a list",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
}

_PATTERNS = {
    "name": "use up to 63 lower-case letters, digits, dots, dashes and underscores; start with a letter or digit",
    "file": "name a .py file inside the overlay's folder, relative to it and without ..",
    "function": "give the name of a function of that file",
}


def build_overlay(path: Path, content: YamlFile) -> Overlay:
    """Validate `content`.

    Raises:
        InvalidOverlayError: with every defect, in the order of the file.
    """
    try:
        return Overlay.model_validate(content.data)
    except ValidationError as exc:
        found = [_problem(error, content) for error in exc.errors(include_url=False)]
    raise InvalidOverlayError(path, sorted(found, key=lambda problem: problem.line)) from None


def suggest(word: str, known: list[str], cutoff: float = 0.6) -> str:
    """Return ` (did you mean 'x'?)` when a known word is at least `cutoff` similar to `word`, else an empty text."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _problem(error: ErrorDetails, content: YamlFile) -> Problem:
    loc = error["loc"]
    what, fix = _explain(error)
    return Problem(content.line(loc), key_path(loc), what, fix)


def _explain(error: ErrorDetails) -> tuple[str, str]:
    kind, loc, value = error["type"], error["loc"], error["input"]
    if kind == "extra_forbidden":
        return _explain_unknown(loc)
    if kind == "missing":
        return f"{key_path(loc)} is missing", f"add `{loc[-1]}: ...`"
    if kind in _TYPES:
        return f"expected {_TYPES[kind]}, got {_show(value)}", f"write {_TYPES[kind]}{_hint(value, kind)}"
    if kind == "literal_error":
        allowed = str(error["ctx"]["expected"])
        words = [word.strip("'") for word in allowed.replace(" or ", ", ").split(", ")]
        return f"{_show(value)} is not allowed{suggest(str(value), words)}", f"use one of {', '.join(words)}"
    if kind == "overlay":  # raised by the schema's own validators
        return error["ctx"]["what"], error["ctx"]["fix"]
    if kind == "string_pattern_mismatch":
        return f"{_show(value)} is not a valid {loc[-1]}", _PATTERNS[str(loc[-1])]
    text = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{_show(value)} is out of range", f"it should be {text}"


def _explain_unknown(loc: tuple[int | str, ...]) -> tuple[str, str]:
    key, known = str(loc[-1]), known_keys(Overlay, loc[:-1])
    close = suggest(key, known)
    if loc[0] != "server_args":
        return f"unknown key {key!r}{close}", f"use one of {', '.join(known)}"
    if reason := refusal(key):
        return f"{key!r} is not on the allowlist: {reason[0]}", reason[1]
    what = f"{key!r} is not on the allowlist of performance-only server arguments{close}"
    return what, "remove it, or give it on the server's command line; `specpilot overlay schema` lists the allowed ones"


def known_keys(root: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the schema `root` knows at `loc`, pydantic's location of an error."""
    model = root
    for part in loc:
        if isinstance(part, str):
            model = _inner_model(model.model_fields[part].annotation)
    return list(model.model_fields)


def _inner_model(annotation: Any) -> type[BaseModel]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(_inner_model(arg) for arg in get_args(annotation) if arg not in (Ellipsis, type(None)))


def _show(value: Any) -> str:
    spelt = {None: "nothing", True: "true", False: "false"}
    text = spelt[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _hint(value: Any, kind: str) -> str:
    if kind == "bool_type" and str(value).lower() in {"yes", "on", "no", "off"}:
        return " (YAML 1.2 reads yes, no, on and off as text)"
    if value is None:
        return ", or remove the key to keep its default"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return " (in quotes)"
    plain = {"bool_type", "int_type", "int_from_float", "float_type"}
    return " without quotes" if isinstance(value, str) and kind in plain else ""
