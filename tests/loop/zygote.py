"""Imports the fake loop once, then runs it in forked children that are killed at random; used by `test_kills`."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import psutil
from loop_fakes import context_of, final_state

from specpilot_sglang.loop.controller import pins
from specpilot_sglang.loop.controller.loop import run_loop

pins.judge_pins.take = lambda root=None: {}  # reads all of SGLang's RECORD


def run(root):
    """Runs the loop to its end in a forked child; returns the child's id."""
    pid = os.fork()
    if pid == 0:
        try:
            run_loop(context_of(root))
            os._exit(0)
        except BaseException as exc:
            sys.stderr.write(f"{exc!r}\n")
            os._exit(1)
    return pid


def kill_one(root, rng, controller):
    """Kills the controller, or one of the trials' processes."""
    jobs = [p for p in psutil.Process(controller).children(recursive=True) if "executors.job" in " ".join(_line(p))]
    victim = rng.choice(jobs).pid if jobs and rng.random() < 0.4 else controller
    os.kill(victim, signal.SIGKILL)
    return victim == controller


def _line(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def main():
    root, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng, done, begun = random.Random(seed), 0, time.monotonic()
    code = None
    while code is None:
        pid = run(root)
        killed = False
        while done < kills and not killed and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(rng.uniform(0.0, 0.6))
            try:
                killed = kill_one(root, rng, pid)
                done += 1
            except (ProcessLookupError, psutil.Error):
                break
        _, status = os.waitpid(pid, 0)
        if killed:
            continue
        # A trial that is lost more often than is tried ends the controller with an error; starting it again goes on.
        code = 0 if status == 0 else None if done < kills else 1
    context = context_of(root)
    left = [p.pid for p in psutil.process_iter() if str(root) in " ".join(_line(p)) and p.pid != os.getpid()]
    finishes = [e.job for e in context.journal.events("finish")]
    ran = (context.state.root / "ran.jsonl").read_text().splitlines()
    report = {
        "code": code,
        "kills": done,
        "state": final_state(context),
        "orphans": left,
        "twice": sorted({job for job in finishes if finishes.count(job) > 1}),
        "check": context.journal.check(),
        "ran": len(ran),
        "seconds": time.monotonic() - begun,
    }
    print(json.dumps(report))


main()
