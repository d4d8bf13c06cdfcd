"""Claude Code's PreToolUse hook: counts tool calls and refuses those past the cap or outside the working folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

_COUNT, _ROOTS = Path("/tmp", "tool-calls"), ("/task", "/jail", "/tmp", "/in")


def main() -> int:
    """Return 0 to let the call pass, 2 to refuse it with the reason on standard error."""
    most = int(sys.argv[1])
    with _COUNT.open("a") as counter:
        counter.write(".")
    if _COUNT.stat().st_size > most:
        sys.stderr.write(f"the budget of {most} tool calls is used up: write note.json is all that is left to do")
        return 2
    try:
        place = str(json.load(sys.stdin).get("tool_input", {}).get("file_path", "/task"))
    except (ValueError, AttributeError):
        return 2
    if not str(Path("/task", place).resolve()).startswith(_ROOTS):
        sys.stderr.write("outside the working folder")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
