"""Imports the loop once, then runs it in forked children and kills processes at random; used by `test_kills`.

    python zygote.py ROOT KILLS SEED KIND...

Loops are run one after the other, each in a folder of its own, until there were enough kills; every one of them must
end as the loop that nobody disturbed. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from importlib import import_module
from pathlib import Path

import psutil
from kill_parts import AGENT, context_of
from kill_trials import SERVER
from loop_fakes import final_state

from specpilot_sglang.loop.controller import pins
from specpilot_sglang.loop.controller.loop import run_loop
from specpilot_sglang.loop.jail.trial import require_jail

pins.judge_pins.take = lambda root=None: {}  # reads all of SGLang's RECORD
#: How a process of each kind is recognised on its command line.
MARKS = {"agent": (AGENT, "/in/inside.py"), "server": (SERVER,), "worker": ("executors.job", "JobSupervisor")}
#: In the environment of all that is started here, so that what is left over is found.
MARK = os.environ.setdefault("SPECPILOT_TEST_MARK", f"specpilot-kill-{os.getpid()}")
#: Address of the Ray cluster that trials run on; empty for this host's own executor.
RAY = os.environ.get("KILL_RAY", "")
_WAIT_S = 5.0
#: About how long a process of each kind lives, in seconds.
_LIFE_S = {"controller": 1.5, "agent": 0.4, "server": 0.4, "worker": 1.5}


def start(root):
    """Run the loop to its end in a forked child; return the child's id."""
    pid = os.fork()
    if pid == 0:
        try:
            run_loop(context_of(root))
            os._exit(0)
        except BaseException as exc:
            sys.stderr.write(f"{exc!r}\n")
            os._exit(1)
    return pid


def kill_one(kind, rng, controller):
    """Kill one process of this kind at a random point of its life; return its kind, or nothing without one in time."""
    deadline, wait = time.monotonic() + _WAIT_S, rng.uniform(0.0, _LIFE_S[kind])
    while time.monotonic() < deadline and alive(controller):
        if kind == "controller":
            time.sleep(wait)
            return killed(psutil.Process(controller), kind) if alive(controller) else ""
        if found := victims(kind, controller):
            time.sleep(wait)
            if name := killed(rng.choice(found), kind):
                return name
            wait = rng.uniform(0.0, wait)  # it ended before
        time.sleep(0.005)
    return ""


def victims(kind, controller):
    """Processes of one kind: the controller's descendants, and what Ray runs for this test."""
    try:
        below = psutil.Process(controller).children(recursive=True)
    except psutil.Error:
        return []
    if RAY:
        below += [p for p in psutil.process_iter() if marked(p)]
    return [p for p in below if any(mark in " ".join(line(p)) for mark in MARKS[kind])]


def marked(process):
    try:
        return process.environ().get("SPECPILOT_TEST_MARK") == MARK
    except psutil.Error:
        return False


def killed(process, kind):
    try:
        process.kill()
    except psutil.Error:
        return ""
    return kind


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def line(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def disturbed(root, kills, rng, kinds):
    """Run one loop to its end with up to `kills` kills; return how many of each kind there were, and its exit code."""
    done = dict.fromkeys(kinds, 0)
    while True:
        pid, name = start(root), ""
        while sum(done.values()) < kills and name != "controller" and alive(pid):
            fewest = [k for k in kinds if done[k] == min(done.values())]
            name = kill_one(rng.choice(fewest if rng.random() < 0.5 else kinds), rng, pid)
            if name:
                done[name] += 1
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            continue
        return done, os.waitstatus_to_exitcode(status)


def left_over(root):
    """What still runs of a loop that ended; what was just told to end is given a moment."""
    for _ in range(50):
        found = [p for p in psutil.process_iter() if p.pid != os.getpid() and of_this_test(p, root)]
        if not found:
            return []
        time.sleep(0.1)
    return [" ".join(line(p))[:300] for p in found]


def of_this_test(process, root):
    """Agents and their jails have no environment; they have their own mark, or a parent with one."""
    words = " ".join(line(process))
    own = marked(process) and not RAY  # a cluster outlives the loop, and has the same mark
    return alive(process.pid) and (own or str(root) in words or AGENT in words or "/in/inside.py" in words)


def report(root, code, done):
    context = context_of(root)
    finishes = [event.job for event in context.journal.events("finish")]
    trials = [job.key for job in context.journal.jobs("trial")]
    return {
        "code": code,
        "kills": done,
        "state": final_state(context),
        "orphans": left_over(root),
        "twice": sorted({job for job in finishes if finishes.count(job) > 1}),
        "unfinished": [job for job in trials if job not in finishes],
        "check": context.journal.check(),
        "retries": sum(job.retries for job in context.journal.jobs()),
    }


def main():
    root, kills, seed, kinds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    require_jail()  # once: children inherit the proof
    if RAY:
        import_module("ray.job_submission")  # likewise
    rng, left, begun, rows = random.Random(seed), kills, time.monotonic(), []
    most = int(os.environ.get("KILLS_A_LOOP", str(kills or 1)))
    for number in range(1000):
        place = root / f"{number:02d}"
        place.mkdir(parents=True)
        done, code = disturbed(place, min(left, most), rng, kinds)
        left -= sum(done.values())
        rows.append(report(place, code, done))
        sys.stderr.write(f"loop {number}: {done}, code {code}, {left} kills left\n")
        if left <= 0 or code != 0 or not os.environ.get("KILLS_A_LOOP"):
            break
    print(json.dumps({"loops": rows, "seconds": time.monotonic() - begun, "seed": seed}))


if __name__ == "__main__":
    main()
