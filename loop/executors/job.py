"""Runs one job in a process of its own: `python -m specpilot_sglang.loop.executors.job FOLDER`.

The result is written in one step, last of all; a job that is killed before has none and is run again, which its entry
function must allow. A failure that is not the candidate's is a result too, so that the reason is kept.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from specpilot_sglang.cli.interrupts import ended_like_ctrl_c
from specpilot_sglang.errors import EXIT_ERROR, SpecPilotError
from specpilot_sglang.eval.ab.durable import write_json


def main() -> int:
    """Run the job of the folder named on the command line; 0 when it left a result that is no failure."""
    folder = Path(sys.argv[1])
    job: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    (folder / "pid").write_text(f"{os.getpid()}\n")
    sys.path[:0] = job["python_path"]
    module, _, function = job["entry"].partition(":")
    try:
        with ended_like_ctrl_c():
            value = getattr(importlib.import_module(module), function)(**job["payload"])
    except SpecPilotError as exc:
        write_json(folder / "result.json", {"infra": exc.line(), "attempt": job["attempt"]})
        return EXIT_ERROR
    write_json(folder / "result.json", {"value": value, "attempt": job["attempt"]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
