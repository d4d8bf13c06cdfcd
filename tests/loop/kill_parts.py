"""The loop that is killed: agents in real jails, trials with server processes, on the local executor or on Ray."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from kill_trials import rejudge
from loop_fakes import KEY, YAML

from specpilot_sglang.loop.agents.running import run_agent
from specpilot_sglang.loop.agents.settings import AgentSettings
from specpilot_sglang.loop.controller.context import Context, Parts
from specpilot_sglang.loop.controller.settings import LoopSettings
from specpilot_sglang.loop.controller.state import State
from specpilot_sglang.loop.executors.local import LocalExecutor
from specpilot_sglang.loop.executors.ray_jobs import RayExecutor
from specpilot_sglang.loop.jail.bubblewrap import python
from specpilot_sglang.loop.jail.limits import Limits
from specpilot_sglang.loop.journal import Journal
from specpilot_sglang.loop.memory import Memory

#: On the command line of every agent, so that a killer finds it.
AGENT = "specpilot-toy-agent"
#: Tries block sizes in turn; in any other direction it breaks the rules once and then has nothing left.
_SCRIPT = f"""
import json, pathlib, time
task = json.loads(pathlib.Path("task.json").read_text())
time.sleep({{sleep}})
overlay, note = pathlib.Path("overlays/toy/overlay.yaml"), {{{{}}}}
if task["direction"]["name"] != "block-size":
    if not [row for row in task["history"] if row["direction"] == task["direction"]["name"]]:
        overlay.with_name("conftest.py").write_text("x = 1\\n")
        note = {{{{"hypothesis": "x"}}}}
else:
    old = task["incumbent"]["{KEY}"]
    tried = {{{{old, *(row["values"].get("{KEY}") for row in task["history"])}}}}
    left = [n for n in (3, 4, 6, 8) if n not in tried]
    if left:
        text = overlay.read_text()
        overlay.write_text(text.replace(f"draft_tokens: {{{{old}}}}", f"draft_tokens: {{{{left[0]}}}}"))
        change = f"{{{{old}}}} -> {{{{left[0]}}}}"
        note = {{{{"hypothesis": "more drafts", "change": change, "predicted_gain_percent": 5}}}}
time.sleep({{sleep}})
pathlib.Path("note.json").write_text(json.dumps(note))
"""


def agent(settings, task, incumbent, folder):
    """Runs the toy agent in a real jail. How long it took must not decide which direction comes next."""
    script = _SCRIPT.format(sleep=float(os.environ.get("FAKE_S", "0")))
    command = (python(), "-I", "-S", "-c", script, AGENT)
    chosen = AgentSettings(preset="command", command=command, limits=Limits(wall_s=60.0, memory_mib=256))
    outcome = run_agent(chosen, task, incumbent, folder)
    return replace(outcome, result=replace(outcome.result, wall_s=1.0))


def context_of(root):
    overlay = root / "source" / "toy"
    if not overlay.exists():
        overlay.mkdir(parents=True)
        (overlay / "overlay.yaml").write_text(YAML)
    # More retries than one job can be killed: a job that was given up has a test of its own.
    settings = LoopSettings(overlay=str(overlay), canary=None, agents=2, candidates=8, infra_retries=60)
    address, state = os.environ.get("KILL_RAY"), State(root / "state")
    executor = RayExecutor(address, python=sys.executable) if address else LocalExecutor()
    parts = Parts(agent, "kill_trials:trial", rejudge, (str(Path(__file__).parent),))
    return Context(settings, state, Journal(state.root), Memory(state.memory, seeds=False), executor, parts)
