"""The documents say what the files say."""

from __future__ import annotations

import ast
import re
import subprocess


def test_structures_names_every_module_with_its_docstrings_first_sentence(repository):
    listed = {}
    prefix = ""
    for line in (repository / "docs" / "structures.md").read_text().splitlines():
        if heading := re.match(r"### .*`(.+)`$", line):
            prefix = heading[1]
        elif line.startswith("### "):
            prefix = ""
        elif entry := re.match(r"- `([^`]+\.py)`: (.+)$", line):
            listed[prefix + entry[1]] = entry[2]
    out = subprocess.run(["git", "ls-files", "*.py"], cwd=repository, capture_output=True, text=True, check=True).stdout
    modules = {}
    for name in out.splitlines():
        if not name.startswith("tests/") and (repository / name).is_file():
            docstring = ast.get_docstring(ast.parse((repository / name).read_text())) or ""
            modules[name] = docstring.split("\n\n")[0].replace("\n", " ")
    assert listed == modules


def test_readme_has_both_commands_and_its_limitations(repository):
    text = (repository / "README.md").read_text()
    for part in ("<!-- demo command -->", "<!-- test command -->", "## Limitations", "## Prior art"):
        assert part in text
