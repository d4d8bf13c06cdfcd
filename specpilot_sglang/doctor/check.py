"""The result of one check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a check went, worst last. `ERROR` means that doctor itself failed, not the machine."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    ERROR = "error"


@dataclass(frozen=True)
class Check:
    """One finding.

    Attributes:
        name: what was looked at.
        status: `fail` = the plugin cannot serve like this; `warn` = something will be missing or slower.
        detail: what was found.
        fix: the command or change that helps; empty when nothing is wrong.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the check as plain data for `--json`."""
        return {**asdict(self), "status": str(self.status)}


def ok(name: str, detail: str) -> Check:
    """Return a check that passed."""
    return Check(name, Status.OK, detail)


def warn(name: str, detail: str, fix: str) -> Check:
    """Return a check that found something missing that serving does not need."""
    return Check(name, Status.WARN, detail, fix)


def fail(name: str, detail: str, fix: str) -> Check:
    """Return a check that found something without which the plugin cannot serve."""
    return Check(name, Status.FAIL, detail, fix)


#: A named group of checks that looks at one side of the machine.
Probe = tuple[str, Callable[[], Iterable[Check]]]


def run_probes(probes: Iterable[Probe]) -> list[Check]:
    """Run every probe; one that raises becomes an `error` check and the others still run."""
    checks: list[Check] = []
    for name, probe in probes:
        try:
            checks += probe()
        except Exception as exc:  # whatever it is, the user should see the other findings too
            detail = f"the check itself failed ({type(exc).__name__}: {exc})"
            checks.append(Check(name, Status.ERROR, detail, "report this with `specpilot doctor --json`"))
    return checks
