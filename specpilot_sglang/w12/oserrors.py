"""Turns operating system errors into errors with a remedy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specpilot_sglang.errors import W12Error

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def os_errors(path: Path, action: str) -> Iterator[None]:
    """Raise `W12Error` naming `path` for any `OSError` inside the block; `action` is "read" or "write"."""
    try:
        yield
    except OSError as exc:
        what, fix = _explain(exc, action)
        raise W12Error(what, where=path, fix=fix) from exc


def _explain(exc: OSError, action: str) -> tuple[str, str]:
    reason = (exc.strerror or str(exc)).lower()
    if exc.errno in _FULL:
        return f"cannot {action}: {reason}", "free space on that disk or choose another destination, then run again"
    if exc.errno in _FORBIDDEN:
        return f"cannot {action}: {reason}", f"grant {action} permission or choose another path"
    if exc.errno == errno.ENOTDIR:
        return f"cannot {action}: a part of the path is a file, not a folder", "choose another path"
    if exc.errno == errno.ENOENT:
        return f"cannot {action}: does not exist", "check the path"
    return f"cannot {action}: {reason}", "check the disk and the path, then run again"
