"""The jail's own machinery: proof or refusal, exports, what comes out, limits, the proxy, the container profile."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.jail import bubblewrap, cgroup, trial
from specpilot_sglang.loop.jail.bubblewrap import jail_command, python
from specpilot_sglang.loop.jail.container import container_command
from specpilot_sglang.loop.jail.export import export
from specpilot_sglang.loop.jail.gateway import check_upstream, gateway
from specpilot_sglang.loop.jail.limits import Limits
from specpilot_sglang.loop.jail.running import run_in_jail
from specpilot_sglang.loop.jail.seccomp import agent_filter
from specpilot_sglang.loop.jail.spec import PLACEHOLDER, JailSpec
from specpilot_sglang.loop.jail.usage import Caps, Ledger, Spent

SMALL = Limits(wall_s=20.0, cpu_s=10, memory_mib=256, processes=16, disk_mib=4, output_mib=1)


@pytest.fixture
def overlay(tmp_path):
    folder = tmp_path / "source" / "toy"
    folder.mkdir(parents=True)
    (folder / "overlay.yaml").write_text("name: toy\n")
    (folder / "evidence.json").write_text("{}")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("history")
    return folder


@pytest.fixture
def run(tmp_path, overlay, jail):
    def call(program, **settings):
        inputs = export(overlay, None, {"direction": "x"}, tmp_path / f"in{len(list(tmp_path.iterdir()))}")
        settings.setdefault("limits", SMALL)
        return run_in_jail(JailSpec(inputs, (python(), "-I", "-S", "-c", program), **settings))

    return call


def test_a_probe_finds_every_wall(jail):
    assert all(trial.probe().values())


@pytest.mark.parametrize("gone", ["bwrap", "prlimit"])
def test_without_its_tools_nothing_is_run(gone, monkeypatch, tmp_path):
    real = bubblewrap.shutil.which
    monkeypatch.setattr(
        bubblewrap.shutil, "which", lambda name, path=None: None if name == gone else real(name, path=path)
    )
    trial._problem.cache_clear()
    try:
        with pytest.raises(SpecPilotError, match=f"not run without a jail.*{gone} is not installed"):
            trial.require_jail()
    finally:
        trial._problem.cache_clear()


@pytest.mark.parametrize("wall", ["has a seccomp filter", "is limited in processes", "has a network of its own"])
def test_one_missing_wall_is_enough_to_refuse(wall, monkeypatch, jail):
    found = {**trial.probe(), wall: False}
    monkeypatch.setattr(trial, "probe", lambda: found)
    trial._problem.cache_clear()
    try:
        with pytest.raises(SpecPilotError, match=f"not true: it {wall}"):
            trial.require_jail()
    finally:
        trial._problem.cache_clear()


def test_ordinary_users_get_a_user_namespace_and_root_a_user_of_its_own(tmp_path):
    spec = JailSpec(tmp_path, ("true",))
    ordinary, root = jail_command(spec, 9, root=False), jail_command(spec, 9, root=True)
    assert {"--unshare-all", "--unshare-user"} <= set(ordinary)
    assert {"--unshare-pid", "--unshare-net", "--unshare-ipc"} <= set(root)
    uids = {jail_command(spec, 9, root=True)[root.index("--reuid") + 1] for _ in range(8)}
    assert len(uids) > 4
    for command in (ordinary, root):
        assert {"--die-with-parent", "--new-session", "--clearenv"} <= set(command)
        assert not {"--bind", "--dev-bind", "--share-net"} & set(command)


def test_an_export_has_no_history_no_evidence_and_no_links(tmp_path, overlay):
    tree = export(overlay, None, {}, tmp_path / "out") / "tree"
    names = sorted(p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file())
    assert names == ["overlays/toy/overlay.yaml", "task.json"]
    (overlay / "link").symlink_to("/etc/passwd")
    with pytest.raises(SpecPilotError, match="link or special file"):
        export(overlay, None, {}, tmp_path / "out2")


def test_a_patch_and_a_note_come_out(run):
    result = run(
        "import os; open('overlays/toy/overlay.yaml','a').write('# new\\nlast'); os.makedirs('overlays/toy/k');"
        "open('overlays/toy/k/a.py','w').write('x = 1\\n'); open('note.md','w').write('why'); print('hello')"
    )
    assert result.ok
    assert result.note == "why"
    assert result.log == "hello\n"
    assert "+# new\n+last\n\\ No newline at end of file\n" in result.patch
    assert "new file mode 100644\n--- /dev/null\n+++ b/overlays/toy/k/a.py" in result.patch


def test_links_binaries_and_modes_show_in_the_patch(run):
    result = run(
        "import os; os.symlink('/in', 'overlays/toy/l'); open('overlays/toy/b','wb').write(bytes(9));"
        "os.chmod('overlays/toy/overlay.yaml', 0o755); os.mkfifo('overlays/toy/pipe')"
    )
    for part in ("new file mode 120000", "Binary files", "new mode 100755", "new file mode 160000"):
        assert part in result.patch


@pytest.mark.parametrize(
    ("program", "limits", "ended"),
    [
        ("import time; time.sleep(60)", {"wall_s": 0.5}, "wall"),
        ("b = bytearray(200 << 20)\nimport time; time.sleep(9)", {"memory_mib": 64}, "memory"),
    ],
)
def test_a_limit_ends_the_run_and_is_named(run, program, limits, ended):
    result = run(program, limits=SMALL.model_copy(update=limits))
    assert (result.ended, result.code, result.patch) == (ended, None, "")


@pytest.mark.parametrize("victim", ["os.getpid()", "os.getppid()"])
def test_an_agent_that_sigkill_ended_leaves_no_half_patch(run, victim):
    edit = "import os; open('overlays/toy/overlay.yaml','a').write('# half'); "
    result = run(f"{edit}os.kill({victim}, 9)")
    assert (result.ended, result.patch) == ("killed", "")


def test_a_jail_whose_controller_was_killed_is_found_by_its_label(overlay, tmp_path):
    import subprocess
    import sys

    from specpilot_sglang.loop.jail.running import LABEL, end_labelled

    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"], env={LABEL: "mine"})
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"], env={LABEL: "yours"})
    try:
        while not all(Path(f"/proc/{process.pid}/environ").read_bytes() for process in (left, other)):
            pass
        assert end_labelled("") == []
        assert end_labelled("mine") == [left.pid]
        assert left.wait() == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_background_process_does_not_outlive_its_jail(run):
    import psutil

    mark = "specpilot-mark-4711"
    result = run(
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)', '{mark}'])"
    )
    assert result.ok
    assert [p.pid for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])] == []


def test_no_secret_may_be_set_in_a_jail(tmp_path):
    for name in ("ANTHROPIC_API_KEY", "AWS_PROFILE", "GITHUB_TOKEN", "DB_PASSWORD"):
        with pytest.raises(SpecPilotError, match="bring a secret"):
            JailSpec(tmp_path, ("true",), {name: "x"})
    assert JailSpec(tmp_path, ("true",), {"ANTHROPIC_API_KEY": PLACEHOLDER, "KEYBOARD": "x"})


def test_the_filter_refuses_unknown_machines():
    assert len(agent_filter("x86_64")) % 8 == 0
    assert agent_filter("x86_64") != agent_filter("aarch64")
    with pytest.raises(SpecPilotError, match="riscv64"):
        agent_filter("riscv64")


def test_a_cgroup_gets_the_sums_as_its_limits(tmp_path):
    root = tmp_path / "cg"
    root.mkdir()
    own = tmp_path / "own"
    own.write_text("0::/\n")
    (root / "cgroup.subtree_control").write_text("cpu")
    assert cgroup.parent(root, own) is None
    (root / "cgroup.subtree_control").write_text("cpu memory pids")
    assert cgroup.parent(root, own) == root
    with cgroup.group(77, SMALL, root) as made:
        folder = root / "specpilot-jail-77"
        assert made
        assert (folder / "memory.max").read_text() == str(264 * 2**20)
        assert (folder / "cgroup.procs").read_text() == "77"


def test_a_container_gets_the_same_walls(tmp_path):
    text = " ".join(container_command(JailSpec(tmp_path, ("true",), limits=SMALL), "podman"))
    for part in (
        "podman run --rm",
        "--network none --read-only --cap-drop ALL --security-opt no-new-privileges",
        f"--volume {tmp_path}:/in:ro",
        "--pids-limit 16",
        "--memory 264m --memory-swap 264m",
        "/task:rw,size=4m",
        "--user 65534:65534",
    ):
        assert part in text
    assert ":rw " not in text.replace("size=", "")


class _Model(BaseHTTPRequestHandler):
    seen: list = []  # noqa: RUF012

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        _Model.seen.append((self.path, dict(self.headers), body))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        start = {"type": "message_start", "message": {"usage": {"input_tokens": 40, "output_tokens": 1}}}
        end = {"type": "message_delta", "usage": {"output_tokens": 10}}
        for event in (start, end):
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def model():
    _Model.seen = []
    server = HTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


ASK = """
import json, os, urllib.request, urllib.error
def ask(path):
    url, key = os.environ["ANTHROPIC_BASE_URL"] + path, os.environ["ANTHROPIC_API_KEY"]
    r = urllib.request.Request(url, b"{}", {"x-api-key": key})
    try:
        with urllib.request.urlopen(r) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()
print(json.dumps([ask("/v1/messages"), ask("/v1/files"), ask("/v1/messages"), ask("/v1/messages")]))
"""


def test_the_proxy_puts_the_key_in_outside_and_stops_at_the_cap(run, model, tmp_path):
    secret, caps = "the-real-key-of-the-user", Caps(calls=2, tokens=10_000)
    env = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:8377", "ANTHROPIC_API_KEY": PLACEHOLDER}
    with gateway(model, secret, caps, tmp_path / "ledger.jsonl", ()) as folder:
        result = run(ASK, env=env, socket_dir=folder)
    answers = json.loads(result.log)
    assert [status for status, _ in answers] == [200, 403, 200, 429]
    assert "message_delta" in answers[0][1]
    assert [headers["x-api-key"] for _, headers, _ in _Model.seen] == [secret] * 2
    assert secret not in result.log
    assert Ledger(tmp_path / "ledger.jsonl", caps).spent() == Spent(2, 80, 20)


def test_the_proxy_knows_its_hosts_and_prices(tmp_path):
    for url in ("https://example.org", "http://api.anthropic.com", "https://api.anthropic.com.evil.org"):
        with pytest.raises(SpecPilotError, match="may not talk to this host"):
            check_upstream(url)
    check_upstream("https://api.anthropic.com")
    with pytest.raises(SpecPilotError, match="needs prices"):
        Caps(usd=1.0).check()
    caps = Caps(usd=0.001, usd_per_mtok_in=3.0, usd_per_mtok_out=15.0)
    ledger = Ledger(tmp_path / "l", caps)
    ledger.add(200, 20, 200)
    assert ledger.spent().usd == pytest.approx(0.0009)
    assert ledger.spent().over(caps) == ""
    ledger.add(200, 20, 200)
    assert ledger.spent().over(caps) == "usd"
