"""What the loop's tests share."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from specpilot_sglang.errors import SpecPilotError


@pytest.fixture(scope="session")
def jail():
    """Skips when agents cannot be jailed on this machine, which is what the loop would refuse as well."""
    from specpilot_sglang.loop.jail.trial import require_jail

    try:
        require_jail()
    except SpecPilotError as exc:
        # A machine without bubblewrap is skipped; a jail that starts and lacks a wall is what the tests are for.
        if "not true: it" in exc.what:
            pytest.fail(exc.line())
        pytest.skip(exc.line())


@pytest.fixture
def cluster(tmp_path, monkeypatch, free_port):
    """A Ray head on loopback that offers three hosts' worth of jobs and asks for a token."""
    if find_spec("ray") is None:  # not imported yet: Ray reads these variables when it is
        pytest.skip("Ray is not installed")
    for name, value in {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "0123456789abcdef" * 2,
        "RAY_raylet_start_wait_time_s": "150",
        # For jobs of the loop that is killed: something to find their processes by, and trials that take some time.
        "SPECPILOT_TEST_MARK": f"specpilot-kill-{os.getpid()}",
        "FAKE_S": "0.15",
    }.items():
        monkeypatch.setenv(name, value)
    temp = Path("/tmp") / f"specpilot-ray-{os.getpid()}"  # Ray's sockets need a short path
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--num-cpus=3", "--port=0"]
    command += [f"--temp-dir={temp}", "--dashboard-host=127.0.0.1", f"--dashboard-port={free_port}"]
    command += ["--node-ip-address=127.0.0.1", "--object-store-memory=100000000", "--disable-usage-stats"]
    command += ["--resources", json.dumps({"specpilot_host": 3}), "--min-worker-port=0", "--max-worker-port=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    try:
        assert done.returncode == 0, done.stdout[-500:] + done.stderr[-1500:]
        deadline = time.monotonic() + 240  # `ray start` does not wait for its dashboard
        while time.monotonic() < deadline and socket.socket().connect_ex(("127.0.0.1", free_port)):
            time.sleep(0.5)
        yield f"http://127.0.0.1:{free_port}"
    finally:
        for process in psutil.process_iter(["cmdline"]):
            if str(temp) in " ".join(process.info["cmdline"] or []):
                process.kill()
        subprocess.run(["rm", "-rf", str(temp)], check=False)
