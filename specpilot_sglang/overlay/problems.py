"""What can be wrong in an overlay file, each with line, key and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import OverlayError


@dataclass(frozen=True)
class Problem:
    """One defect of an overlay file.

    Attributes:
        line: 1-based line in the file; 0 when the file as a whole is meant.
        key: dotted key path (`weights.max_bits`, `patches[0].file`); may be empty.
        what: what is wrong, without a full stop.
        fix: what to do about it.
    """

    line: int
    key: str
    what: str
    fix: str

    def where(self, path: Path) -> str:
        """Return `file:line:key`, leaving out what is unknown."""
        place = f"{path}:{self.line}" if self.line else str(path)
        return f"{place}:{self.key}" if self.key else place

    def as_dict(self) -> dict[str, Any]:
        """Return the problem as plain data for `--json`."""
        return asdict(self)


class InvalidOverlayError(OverlayError):
    """An overlay file that cannot be used; `problems` holds every defect found, first one first."""

    def __init__(self, path: Path, problems: Sequence[Problem]) -> None:
        self.path, self.problems = path, tuple(problems)
        first, rest = self.problems[0], len(self.problems) - 1
        more = f" (and {rest} more: `specpilot overlay validate {path}` shows all)" if rest else ""
        super().__init__(first.what, where=first.where(path), fix=first.fix + more)
