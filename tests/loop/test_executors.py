"""Executors: ids that ask once, orphans, a cluster without a token, three hosts' worth of Ray jobs, the canary."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.executors import JobStatus, ray_jobs
from specpilot_sglang.loop.executors.base import JobSpec
from specpilot_sglang.loop.executors.canary import Canary, canary
from specpilot_sglang.loop.executors.local import LocalExecutor, end_orphan
from specpilot_sglang.loop.executors.ray_jobs import RayExecutor, require_token

HERE = str(Path(__file__).parent)


def a_job(folder, attempt=1, **payload):
    row = {
        "settings": {},
        "incumbent": "",
        "candidate": "",
        "folder": str(folder),
        "state": str(folder.parent),
        **payload,
    }
    for name in ("incumbent", "candidate"):
        place = folder.parent / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "overlay.yaml").write_text(f"  speculative_num_draft_tokens: {2 if name == 'incumbent' else 8}\n")
        row[name] = str(place)
    return JobSpec("trial:1", attempt, "loop_trials:trial", row, folder, (HERE,))


def finish(executor, job, seconds=120.0):
    deadline = time.monotonic() + seconds
    while executor.poll(job) is JobStatus.RUNNING and time.monotonic() < deadline:
        time.sleep(0.1)
    return executor.poll(job)


def test_a_job_runs_once_for_each_id_and_leaves_a_result(tmp_path):
    executor, job = LocalExecutor(), a_job(tmp_path / "t")
    executor.submit(job)
    executor.submit(job)
    assert finish(executor, job) is JobStatus.ENDED
    assert job.result()["value"]["status"] == "accepted"
    assert len((tmp_path / "ran.jsonl").read_text().splitlines()) == 1
    assert job.id == a_job(tmp_path / "t").id != a_job(tmp_path / "t", attempt=2).id


def test_a_copy_of_the_package_in_the_working_folder_does_not_do_the_judging(tmp_path, monkeypatch):
    other = tmp_path / "here" / "specpilot_sglang"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise SystemExit('the copy')\n")
    monkeypatch.chdir(other.parent)
    executor, job = LocalExecutor(), a_job(tmp_path / "t")
    executor.submit(job)
    assert finish(executor, job) is JobStatus.ENDED


def test_a_job_that_is_killed_is_lost_and_one_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_S", "60")
    executor, job = LocalExecutor(), a_job(tmp_path / "t")
    executor.submit(job)
    while not (job.folder / "pid").exists():
        time.sleep(0.05)
    os.kill(int((job.folder / "pid").read_text()), signal.SIGKILL)
    assert finish(executor, job) is JobStatus.LOST
    assert job.result() is None
    (job.folder / "result.json").write_text("{")
    with pytest.raises(SpecPilotError, match="cannot read a job's result"):
        job.result()


def test_a_result_that_a_former_attempt_left_is_not_this_ones(tmp_path):
    job = a_job(tmp_path / "t", attempt=2)
    job.folder.mkdir()
    (job.folder / "result.json").write_text('{"value": {}, "attempt": 1}')
    assert job.result() is None
    assert a_job(tmp_path / "t", attempt=1).result() == {"value": {}, "attempt": 1}


def test_an_orphan_is_ended_by_its_own_id_and_nothing_else_is(tmp_path):
    folder = tmp_path / "t"
    folder.mkdir()
    sleeper = [sys.executable, "-c", "import time; time.sleep(99)", str(folder)]
    orphan = subprocess.Popen(sleeper, start_new_session=True)
    (folder / "pid").write_text(str(orphan.pid))
    assert end_orphan(folder) == [orphan.pid]
    assert orphan.wait() == -signal.SIGKILL
    assert end_orphan(folder) == []
    (folder / "pid").write_text(str(os.getpid()))
    assert end_orphan(folder) == [], "the number belongs to another program by now"


class _Open(BaseHTTPRequestHandler):
    code = 200

    def do_GET(self):
        self.send_response(self.code)
        self.end_headers()

    def log_message(self, *args):
        pass


def test_a_cluster_that_answers_without_a_token_is_refused(monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), _Open)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address, token = f"http://127.0.0.1:{server.server_port}", {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "x"}
    try:
        with pytest.raises(SpecPilotError, match="with token authentication only"):
            require_token(address, {})
        with pytest.raises(SpecPilotError, match="with token authentication only"):
            require_token(address, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/nowhere"})
        with pytest.raises(SpecPilotError, match="answers without a token"):
            require_token(address, token)
        monkeypatch.setattr(_Open, "code", 401)
        require_token(address, token)
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(SpecPilotError, match="cannot be reached"):
        require_token(address, token)


class Flaky:
    """A cluster's client that is cut off a few times."""

    def __init__(self, failures):
        self.failures = failures

    def get_job_status(self, name):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("reset by peer") if self.failures % 2 else RuntimeError("status code 500")
        return SimpleNamespace(value="RUNNING")


def test_a_cluster_that_is_away_for_a_moment_does_not_lose_its_jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_jobs, "_FIRST_WAIT_S", 0.001)
    executor, job = object.__new__(RayExecutor), a_job(tmp_path / "t")
    executor._address, executor._client = "http://head:8265", Flaky(5)
    assert executor.poll(job) is JobStatus.RUNNING
    executor._client.failures = 10**9
    monkeypatch.setattr(ray_jobs, "AWAY_S", 0.05)
    with pytest.raises(SpecPilotError, match=r"the Ray cluster (cannot be reached|does not answer)"):
        executor.poll(job)


@pytest.mark.long
def test_three_hosts_worth_of_ray_jobs_one_killed_is_finished_elsewhere_once(cluster, tmp_path, monkeypatch):
    executor = RayExecutor(cluster, python=sys.executable)
    jobs = [a_job(tmp_path / f"host{n}" / "t") for n in range(3)]
    for job in jobs:
        # The cluster has an environment of its own, so trials are told by a file to take some time.
        (job.folder.parent / "slow").mkdir(parents=True)
        executor.submit(job)
        executor.submit(job)
    again = RayExecutor(cluster, python=sys.executable)  # another controller knows the same ids
    victim = jobs[1]
    deadline = time.monotonic() + 120
    while not (victim.folder / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(int((victim.folder / "pid").read_text()), signal.SIGKILL)
    assert [finish(again, job) for job in jobs] == [JobStatus.ENDED, JobStatus.LOST, JobStatus.ENDED]
    retry = a_job(tmp_path / "host1" / "t", attempt=2)
    assert again.poll(retry) is JobStatus.UNKNOWN
    again.submit(retry)
    assert finish(again, retry) is JobStatus.ENDED
    for n in range(3):
        ran = (tmp_path / f"host{n}" / "ran.jsonl").read_text().splitlines()
        assert len(ran) == 1


def test_the_canary_sees_a_slower_host(tmp_path):
    first = canary(tmp_path / "canary.json")
    assert first.ratio == 1.0
    assert canary(tmp_path / "canary.json").usual == first.seconds
    assert not Canary("h", 2.0, 1.0, 0.1).quiet(1.5)
    assert Canary("h", 1.4, 1.0, 0.1).quiet(1.5)
