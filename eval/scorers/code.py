"""Finds the code in an answer and joins it with a suite's tests (HumanEval, MBPP)."""

from __future__ import annotations

import re

from specpilot_sglang.eval.suites import Item

_BLOCK = re.compile(r"```[ \t]*([\w+-]*)[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_PYTHON = {"python", "py", "python3"}


def code_of(answer: str, entry_point: str = "") -> str:
    """Return the code of an answer: the last Python block, one that defines `entry_point` if any; else all of it."""
    blocks = [(kind.lower(), body) for kind, body in _BLOCK.findall(answer)]
    python = [body for kind, body in blocks if kind in _PYTHON] or [body for kind, body in blocks if not kind]
    defining = [body for body in python if entry_point and defines(body, entry_point)]
    return (defining or python or [answer])[-1]


def program(item: Item, answer: str) -> str:
    """Return Python source that raises unless the answer solves `item`.

    HumanEval's head stays in front: the answer may continue it, or define the function anew and use its imports
    and helper functions.
    """
    code = code_of(answer, item.entry_point)
    if item.stem:
        anew = defines(code, item.entry_point)
        code = f"{item.stem.rstrip()}\n    pass\n\n{code}" if anew else item.stem + code
    call = f"\ncheck({item.entry_point})\n" if item.entry_point else "\n"
    return f"{code}\n\n{item.tests}\n{call}"


def defines(code: str, name: str) -> bool:
    """Return whether `code` defines a function or a name called `name` at its top level."""
    return re.search(rf"^(?:async\s+)?def\s+{re.escape(name)}\b|^{re.escape(name)}\s*=", code, re.MULTILINE) is not None
