"""`kill -9` of controller, agent, server or worker at random points, then resume: nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KINDS = ("controller", "agent", "server", "worker")


def run(root, kills, *, seed=0, timeout=580.0, **environment):
    # Agents and servers that take some time, so that kills meet all of their steps.
    env = {**os.environ, "FAKE_S": "0.15", "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(HERE / "zygote.py"), str(root), str(kills), str(seed), *KINDS]
    done = subprocess.run(command, env={**env, **environment}, stdout=subprocess.PIPE, text=True, timeout=timeout)
    assert done.returncode == 0
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def calm(jail, tmp_path_factory):
    """The loop that nobody disturbs."""
    (row,) = run(tmp_path_factory.mktemp("calm"), 0)["loops"]
    assert (row["code"], row["orphans"], row["twice"], row["unfinished"], row["check"]) == (0, [], [], [], [])
    assert Counter(status for *_, status in row["state"]["rows"])["accepted"] == 4
    return row["state"]


def same(row, calm):
    assert row["code"] == 0
    assert row["orphans"] == []
    assert row["twice"] == [], "a verdict was made twice"
    assert row["unfinished"] == [], "a verdict was lost"
    assert row["check"] == []
    # A trial's key names the incumbent, whose signed evidence holds the time of its promotion.
    assert list(row["state"].pop("verdicts").values()) == list(calm["verdicts"].values())
    assert row["state"] == {part: value for part, value in calm.items() if part != "verdicts"}


def test_a_loop_that_is_killed_ends_as_one_that_was_not(calm, tmp_path):
    found = run(tmp_path, 5, seed=1)
    (row,) = found["loops"]
    assert sum(row["kills"].values()) >= 3, "a quick machine reaches the end before the last of them"
    same(row, calm)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_kills_of_a_loop_on_ray_change_nothing(calm, cluster, tmp_path):
    """A worker is the job's process on the cluster, or the process by which Ray watches it."""
    kills = int(os.environ.get("SPECPILOT_RAY_KILLS", "20"))
    found = run(tmp_path, kills, seed=7, timeout=3500.0, KILLS_A_LOOP="10", KILL_RAY=cluster)
    total = sum((Counter(row["kills"]) for row in found["loops"]), Counter())
    print(f"Ray, seed 7: {dict(total)} in {len(found['loops'])} loops, {found['seconds']:.0f} s")
    for row in found["loops"]:
        same(row, calm)
    assert total.total() == kills


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_fifty_kills_at_random_points_change_nothing(calm, tmp_path):
    seed = int(os.environ.get("SPECPILOT_KILL_SEED", "20261130"))
    found = run(tmp_path, 50, seed=seed, timeout=3500.0, KILLS_A_LOOP="10")
    total = sum((Counter(row["kills"]) for row in found["loops"]), Counter())
    print(f"seed {seed}: {dict(total)} in {len(found['loops'])} loops, {found['seconds']:.0f} s")
    for row in found["loops"]:
        same(row, calm)
    assert total.total() == 50
    assert min(total[kind] for kind in KINDS) >= 5
