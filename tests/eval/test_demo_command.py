"""`specpilot demo` itself: errors before any server starts, Ctrl-C, and (marked `server`) a short real run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

DEMO = [sys.executable, "-c", "from specpilot_sglang.cli.main import run; run()", "demo", "--quick"]


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **extra}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "absent"], "--draft"),
        (["--model", "absent", "--draft", "absent"], "config.json"),
        (["--overlay", "no-such-overlay"], "no-such-overlay"),
    ],
)
def test_wrong_input_ends_with_one_line_before_a_server_starts(arguments, message, tmp_path):
    done = subprocess.run(
        [*DEMO, *arguments, "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
    )
    assert done.returncode == 2
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("specpilot: error: ")
    assert message in line
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("out/logs/*.log"))


@pytest.mark.server
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_no_process(signum, tmp_path, smollm2):
    demo = subprocess.Popen([*DEMO, "--out", str(tmp_path)], stderr=subprocess.DEVNULL, env=environment())
    try:
        log = tmp_path / "logs" / "ar.log"
        deadline = time.monotonic() + 300
        while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline and demo.poll() is None:
            time.sleep(0.2)
        servers = psutil.Process(demo.pid).children(recursive=True)
        assert servers
        demo.send_signal(signum)
        assert demo.wait(60) == 130
        assert [p for p in servers if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        demo.kill()


@pytest.mark.server
@pytest.mark.slow
def test_short_real_run(tmp_path, smollm2):
    done = subprocess.run(
        [*DEMO, "--json", "--out", str(tmp_path)], capture_output=True, text=True, env=environment(), timeout=1500
    )
    assert done.returncode in (0, 1), done.stderr[-2000:]
    document = json.loads(done.stdout)
    assert document["accepted"] == (done.returncode == 0)
    assert [arm["name"] for arm in document["arms"]] == ["ar", "stock", "specpilot"]
    assert document["arms"][2]["attestation"]["overlay"]["sha256"]
    for arm in document["arms"][1:]:
        assert arm["forcing"]["positions"] == sum(s["tokens"] for s in document["arms"][0]["suites"])
        assert all(s["accept_length"] > 1.2 for s in arm["suites"])
    assert Path(tmp_path / "report.html").stat().st_size > 20_000
