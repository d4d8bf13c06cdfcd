"""Trials of the fake loop; light, because each runs in a process of its own."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from specpilot_sglang.eval.ab.durable import append_line, write_json

#: Block size -> log speed.
SPEED = {2: 0.0, 3: 0.05, 4: 0.2, 6: 0.3, 8: 0.4}


def trial(settings, incumbent, candidate, folder, state):
    """Leaves evidence, and a line for each time that it really ran to its end."""
    blocks = [block_of(Path(path)) for path in (incumbent, candidate)]
    gain = SPEED[blocks[1]] - SPEED[blocks[0]]
    for step in range(3):
        write_json(Path(folder) / "evidence" / f"{step}.json", {"gain": gain})
        slow = 3.0 if (Path(state) / "slow").exists() else float(os.environ.get("FAKE_S", "0"))
        time.sleep(slow / 3)
    append_line(Path(state) / "ran.jsonl", {"candidate": blocks[1], "incumbent": blocks[0]})
    return {"status": "accepted" if gain > 0.01 else "no_gain", "seconds": 1.0, "host": "fake"}


def vanish(settings, incumbent, candidate, folder, state):
    """Its host goes away."""
    os._exit(9)


def block_of(folder):
    return int(re.search(r"num_draft_tokens: (\d+)", (folder / "overlay.yaml").read_text())[1])
