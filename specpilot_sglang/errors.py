"""Errors that a user can act on: what is wrong, where, and what to do about it."""

from __future__ import annotations

from pathlib import Path

#: Exit codes of every `specpilot` command, and of a server that we stop.
EXIT_OK, EXIT_REJECTED, EXIT_ERROR = 0, 1, 2


class SpecPilotError(Exception):
    """A failure with a place and a remedy, printed as one line.

    Args:
        what: what is wrong, without a trailing full stop.
        where: file, `file:line`, `file:line:key` or another place; may be empty.
        fix: what the user can do about it; may be empty.
    """

    def __init__(self, what: str, *, where: str | Path = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, str(where), fix
        super().__init__(self.line())

    def line(self) -> str:
        """Return the error as one line, `where: what. Fix: ...`."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}. Fix: {self.fix}" if self.fix else text


class PluginError(SpecPilotError):
    """The plugin was asked for and cannot be applied; the server must not start as stock."""


class OverlayError(SpecPilotError):
    """An overlay file is missing, malformed, ambiguous or does not fit the deployment."""


class PatchDriftError(PluginError):
    """A patched SGLang symbol is not the one the patch was written against."""


class W12Error(SpecPilotError):
    """A tensor, file or checkpoint cannot be encoded to or decoded from W12."""
