"""Style gates: linter, formatter, types, module and function size, and nothing of one machine in the files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

#: Lines at which a module or function must be split.
MODULE_ALARM, FUNCTION_ALARM = 500, 80
SOURCES = ("specpilot_sglang", "kernels", "loop", "eval", "overlays", "tests")
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|root|farm|home)/\w|/tmp/\w")


def tracked(repository: Path, *suffixes: str) -> list[Path]:
    out = subprocess.run(["git", "ls-files"], cwd=repository, capture_output=True, text=True, check=True).stdout
    paths = [repository / line for line in out.splitlines()]
    return [p for p in paths if p.is_file() and not p.is_symlink() and (not suffixes or p.suffix in suffixes)]


@pytest.mark.parametrize("command", [["ruff", "check"], ["ruff", "format", "--check"]])
def test_ruff(repository, command):
    done = subprocess.run(
        [sys.executable, "-m", *command, "--quiet", *SOURCES],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy(repository, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_and_functions_stay_small(repository):
    too_long = []
    for path in tracked(repository, ".py"):
        source = path.read_text()
        if source.count("\n") > MODULE_ALARM:
            too_long.append(f"{path.relative_to(repository)}: {source.count(chr(10))} lines")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno
                if length > FUNCTION_ALARM:
                    too_long.append(f"{path.relative_to(repository)}:{node.lineno} {node.name}: {length} lines")
    assert too_long == []


def test_no_file_names_a_place_on_one_machine(repository):
    found = []
    for path in tracked(repository, ".py", ".md", ".yaml", ".toml", ".json", ".cu", ".sh"):
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if MACHINE_PATH.search(line):
                found.append(f"{path.relative_to(repository)}:{number}: {line.strip()[:100]}")
    assert found == []
