"""`kill -9` of controller and trials at random points, then resume: nothing lost, nothing twice, the same end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(root, kills, seed=0):
    root.mkdir()
    # Trials that take some time, so that kills meet all of their steps.
    env = {**os.environ, "FAKE_S": "0.2", "PYTHONPATH": str(HERE)}
    command = [sys.executable, str(HERE / "zygote.py"), str(root), str(kills), str(seed)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=580)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("seed", range(int(os.environ.get("SPECPILOT_KILL_SEEDS", "1"))))
def test_a_loop_that_is_killed_ends_as_one_that_was_not(tmp_path, seed):
    kills = int(os.environ.get("SPECPILOT_KILLS", "6"))
    calm = run(tmp_path / "calm", 0)
    killed = run(tmp_path / "killed", kills, seed)
    assert killed["code"] == 0
    assert kills // 2 <= killed["kills"] <= kills, "a quick machine reaches the end before the last of them"
    assert killed["orphans"] == calm["orphans"] == []
    assert killed["twice"] == [], "a verdict was made twice"
    assert killed["check"] == []
    assert len(killed["state"]["verdicts"]) == len(calm["state"]["verdicts"]) > 0
    for part in ("rows", "generation", "published", "memory"):
        assert killed["state"][part] == calm["state"][part], part
    assert sorted(killed["state"]["verdicts"].values()) == sorted(calm["state"]["verdicts"].values())
