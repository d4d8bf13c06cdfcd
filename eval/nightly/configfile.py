"""Reads `nightly.yaml`; every defect comes with file, line, key and fix."""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.nightly.config import Config
from specpilot_sglang.overlay.problems import InvalidOverlayError, Problem
from specpilot_sglang.overlay.validation import known_keys
from specpilot_sglang.overlay.yamlfile import YamlFile, key_path, read_yaml

#: The smoke configuration that runs without any file: SmolLM2 on this machine.
SMOKE = "smoke.yaml"

_EXPECTED = {
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
}


class ConfigError(SpecPilotError):
    """A nightly configuration that cannot be used; `problems` holds every defect, in the file's order."""

    def __init__(self, path: Path, problems: list[Problem]) -> None:
        self.problems = problems
        first, rest = self.problems[0], self.problems[1:]
        more = "".join(f"; also {p.where(path)}: {p.what} ({p.fix})" for p in rest)
        super().__init__(first.what, where=first.where(path), fix=first.fix + more)


def load_config(path: Path) -> Config:
    """Read and validate the configuration at `path`.

    Raises:
        ConfigError: not YAML, unknown or missing keys, wrong types or values out of range.
    """
    try:
        content = read_yaml(path)
    except InvalidOverlayError as exc:  # the YAML reader is the overlays'; its fixes name overlay files
        fix = "start from the file that `specpilot nightly --init FILE` writes"
        rows = [Problem(p.line, p.key, p.what, fix if "overlay" in p.fix else p.fix) for p in exc.problems]
        raise ConfigError(path, [_neutral(row) for row in rows]) from None
    try:
        return Config.model_validate(content.data)
    except ValidationError as exc:
        errors = _told(exc.errors(include_url=False))
        raise ConfigError(path, [_problem(e, content) for e in errors]) from None


def smoke_path() -> Path:
    """Return the packaged smoke configuration."""
    return Path(str(resources.files("specpilot_sglang.eval.nightly") / SMOKE))


def _told(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Return the errors that tell something: a list is called too short when its only item is wrong."""
    inner = {e["loc"][:n] for e in errors for n in range(1, len(e["loc"]))}
    told = [e for e in errors if not (e["type"] == "too_short" and e["loc"] in inner)]
    # A misspelt key is also a missing one: the spelling comes first.
    return sorted(told, key=lambda e: e["type"] == "missing")


def _neutral(problem: Problem) -> Problem:
    return Problem(problem.line, problem.key, problem.what.replace("an overlay", "this file"), problem.fix)


def _problem(error: ErrorDetails, content: YamlFile) -> Problem:
    # Pydantic names the key of a mapping entry `[key]`; the file has no such level.
    loc = tuple(part for part in error["loc"] if part != "[key]")
    what, fix = _explain(error)
    return Problem(content.line(loc), key_path(loc), what, fix)


def _explain(error: ErrorDetails) -> tuple[str, str]:
    kind, loc, value = error["type"], error["loc"], error["input"]
    if kind == "extra_forbidden":
        known = known_keys(Config, loc[:-1])
        close = difflib.get_close_matches(str(loc[-1]), known, n=1)
        guess = f" (did you mean {close[0]!r}?)" if close else ""
        return f"unknown key {loc[-1]!r}{guess}", f"use one of {', '.join(known)}"
    if kind == "missing":
        return f"{key_path(loc)} is missing", f"add `{loc[-1]}: ...`"
    if kind == "nightly":  # raised by the schema's own validator
        return error["ctx"]["what"], error["ctx"]["fix"]
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {shown}", f"write {_EXPECTED[kind]}"
    if kind == "string_pattern_mismatch":
        return f"{shown} is not a valid name", "use up to 63 lower-case letters, digits, dots, dashes and underscores"
    text = error["msg"].removeprefix("Input should be ")
    return f"{shown} is not allowed here", f"it should be {text}"
