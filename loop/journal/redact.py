"""Takes secrets out of what is written to the journal or a log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "[redacted]"
#: Keys of well-known forms, authorisation headers, and values of variables that are named like secrets.
_SECRET = re.compile(
    r"sk-[A-Za-z0-9_-]{16,}|(?i:bearer)\s+[A-Za-z0-9._~+/=-]{12,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}"
    r"|(?i:(?<=_key=)|(?<=_token=)|(?<=_secret=)|(?<=password=))\S{8,}"
)


def redact(value: Any) -> Any:
    """Return JSON values with everything that looks like a secret replaced."""
    if isinstance(value, str):
        return _SECRET.sub(REDACTED, value)
    if isinstance(value, Mapping):
        return {str(k): redact(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [redact(v) for v in value]
    return value
