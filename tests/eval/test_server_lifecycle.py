"""The launcher waits, reports why a server died, and leaves no process of it behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from specpilot_sglang.eval.cores import share_cores
from specpilot_sglang.eval.processes import family, free_port
from specpilot_sglang.eval.servers import Server, ServerStartError, last_error

# A stand-in for the launcher: children as SGLang's ranks, one of them orphaned and deaf to SIGTERM.
STAND_IN = """
import http.server, os, signal, subprocess, sys, time
port, mode = int(sys.argv[1]), sys.argv[2]
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
if mode == "dies":
    print("some progress"); print("RuntimeError: the drafter does not fit"); print("bye"); sys.exit(3)
if mode in ("ready", "deaf"):
    subprocess.Popen([sys.executable, "-c", deaf])
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {deaf!r}])"
    subprocess.Popen([sys.executable, "-c", orphan])
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "silent":
    time.sleep(600)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class StandIn(Server):
    mode = "ready"

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", STAND_IN, str(self.port), self.mode]


def stand_in(mode: str, tmp_path: Path, **kwargs) -> StandIn:
    server = StandIn([], log=tmp_path / "server.log", **{"start_timeout_s": 60, "stop_timeout_s": 1, **kwargs})
    server.mode = mode
    return server


def until(condition, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("mode", ["ready", "deaf"])
def test_stop_ends_children_orphans_and_the_deaf(mode, tmp_path):
    with stand_in(mode, tmp_path) as server:
        assert until(lambda: len(server.processes()) >= 3)
        leader, members = server.pid, server.processes()
    assert family(leader) == []
    assert not [p for p in members if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_a_paused_server_is_stopped_but_for_its_launcher_and_goes_on_or_ends_when_told(tmp_path):
    def states(server):
        return {p.pid: p.status() == psutil.STATUS_STOPPED for p in server.processes()}

    with stand_in("ready", tmp_path) as server:
        assert until(lambda: len(server.processes()) >= 3)
        leader = server.pid
        server.pause()
        assert until(lambda: states(server) == {pid: pid != leader for pid in states(server)})
        server.resume()
        assert until(lambda: not any(states(server).values()))
        server.pause()
        members = server.processes()
    assert not [p for p in members if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_compared_servers_run_their_models_on_the_same_cores_and_the_rest_elsewhere(tmp_path):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    first, *rest = sorted(os.sched_getaffinity(0))
    other = subprocess.Popen(["sleep", "60"])
    named = subprocess.Popen(["sglang::scheduler", "60"], executable="/bin/sleep")
    processes = [psutil.Process(other.pid), psutil.Process(named.pid)]
    try:
        assert share_cores([SimpleNamespace(processes=lambda: processes)]) == tuple(rest)
        assert [p.cpu_affinity() for p in processes] == [[first], rest]
        assert share_cores([SimpleNamespace(processes=lambda: processes)], [first]) == ()
        assert [p.cpu_affinity() for p in processes] == [[first], rest]
    finally:
        for process in (other, named):
            process.kill()
            process.wait()


def test_a_started_server_is_not_started_again(tmp_path):
    server = stand_in("ready", tmp_path)
    server.launch()
    server.start()
    took = server.start_s
    with server:
        assert server.start_s == took


def test_exception_in_the_block_stops_the_server(tmp_path):
    server = stand_in("ready", tmp_path)
    leaders = []

    def use() -> None:
        with server:
            leaders.append(server.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert family(leaders[0]) == []


def test_early_exit_says_why(tmp_path):
    with pytest.raises(ServerStartError, match=r"exit code 3 .*RuntimeError: the drafter does not fit") as caught:
        stand_in("dies", tmp_path).start()
    assert str(tmp_path / "server.log") in caught.value.line()


def test_silent_server_is_given_up_and_killed(tmp_path):
    server = stand_in("silent", tmp_path, start_timeout_s=1.0)
    leaders: list[int] = []
    launch = server._launch
    server._launch = lambda: (launch(), leaders.append(server.pid))  # type: ignore[method-assign]
    with pytest.raises(ServerStartError, match="did not answer in 1 s"):
        server.start()
    assert family(leaders[0]) == []


def test_own_log_is_removed_after_a_clean_stop_only():
    server = StandIn([], start_timeout_s=60, stop_timeout_s=1)
    with server:
        assert server.log.exists()
    assert not server.log.exists()
    failed = StandIn([], start_timeout_s=60, stop_timeout_s=1)
    with pytest.raises(ZeroDivisionError), failed:
        raise ZeroDivisionError
    assert failed.log.exists()
    failed.log.unlink()


@pytest.mark.skipif(sys.platform != "linux", reason="uses the parent-death signal of Linux")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("times", [1, 3])
def test_no_process_outlives_its_starter(signum, times, tmp_path):
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_server_lifecycle import stand_in
with stand_in("silent" if {signum} == {signal.SIGKILL} else "deaf", Path({str(tmp_path)!r})) as server:
    time.sleep(600)
"""
    if signum == signal.SIGTERM:
        script = "import signal\nsignal.signal(signal.SIGTERM, signal.default_int_handler)\n" + script
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    starter = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL, env=environment)
    try:
        alone = signum == signal.SIGKILL
        assert until(lambda: len(psutil.Process(starter.pid).children(recursive=True)) >= (1 if alone else 2), 60)
        children = psutil.Process(starter.pid).children(recursive=True)
        time.sleep(0.3)
        for _ in range(times):  # an impatient user presses Ctrl-C again
            starter.send_signal(signum)
            time.sleep(0.1)
        starter.wait(30)
        assert until(lambda: not [p for p in children if p.is_running() and p.status() != psutil.STATUS_ZOMBIE])
    finally:
        starter.kill()


@pytest.mark.parametrize(
    ("lines", "best"),
    [
        (["INFO ok", "ValueError: bad", "cleanup done"], "ValueError: bad"),
        (
            ["ValueError: bad", "specpilot: error: overlay x.yaml:3: no such key"],
            "specpilot: error: overlay x.yaml:3: no such key",
        ),
        (["pkg.mod.CustomError: deep", "  at line 4"], "pkg.mod.CustomError: deep"),
        (["launch: error: ambiguous option"], "launch: error: ambiguous option"),
        (["just text"], "just text"),
        ([], "the log is empty"),
    ],
)
def test_last_error_picks_the_useful_line(lines, best):
    assert last_error(lines) == best


def test_free_ports_can_be_bound():
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", free_port()))
