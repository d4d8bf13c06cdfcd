"""Finds and compares the final number of an answer to a mathematics problem (GSM8K, AIME)."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_NUMBER = re.compile(r"-?\$?\s?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
#: Places where an answer states its result, the surest first.
_STATED = (
    re.compile(r"\\boxed\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}"),
    re.compile(r"####\s*([^\n]+)"),
    re.compile(r"(?:final answer|answer)\s*(?:is|:|=)\s*:?\s*([^\n]+)", re.IGNORECASE),
)


def final_number(text: str) -> Decimal | None:
    r"""Return the number an answer ends with: the last `\boxed{}`, `#### N` or "answer is N", else the last number."""
    text = text.replace("{,}", ",").replace("\\,", "").replace("\\!", "")  # TeX's thousands separators
    for pattern in _STATED:
        stated = pattern.findall(text)
        numbers = [n for n in map(first_number, reversed(stated)) if n is not None]
        if numbers:
            return numbers[0]
    found = [n for n in map(_value, _NUMBER.findall(text)) if n is not None]
    return found[-1] if found else None


def first_number(text: str) -> Decimal | None:
    """Return the first number in a text, thousands separators and a dollar sign removed."""
    match = _NUMBER.search(text)
    return _value(match.group()) if match else None


def same_number(answer: str, reference: str) -> tuple[bool, str]:
    """Return whether an answer's final number is the reference's, and the number found (`none` without one)."""
    got, wanted = final_number(answer), first_number(reference)
    return got is not None and got == wanted, "none" if got is None else f"{got.normalize():f}"


def _value(text: str) -> Decimal | None:
    try:
        return Decimal(re.sub(r"[$,\s]", "", text))
    except InvalidOperation:
        return None
