"""Escapes: real programs in the real jail, each after something outside of it. None gets it."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from specpilot_sglang.loop.gate import check_patch

SECRET = "sealed-prompt-4711"


def walk(root):
    return f"""
import os
for place, folders, files in os.walk({root!r}, followlinks=False):
    if place.startswith(("/proc", "/sys")):
        folders.clear()
        continue
    for name in files:
        try:
            path = os.path.join(place, name)
            # Reading a terminal would wait for ever.
            if os.path.isfile(path) and b"{SECRET[:-4]}" + b"4711" in open(path, "rb").read(1 << 20):
                print("GOT", place, name)
        except OSError:
            pass
print("walked")
"""


def test_sealed_set_key_history_evidence_and_other_agents_are_nowhere(attack, loop):
    """Five thefts in one walk over everything that is readable, Python's own folders left out for time."""
    program = walk("/").replace('"/sys"', f'"/sys", "/usr", "/lib", {sys.base_prefix!r}')
    result = attack(program)
    assert result.log == "walked\n"
    direct = attack(f"print(open({str(loop / 'trials/t/evidence/sealed.json')!r}).read())")
    assert direct.code != 0
    assert "No such file" in direct.log


def test_the_controllers_process_cannot_be_seen_traced_or_signalled(attack):
    result = attack(
        """
import os, ctypes
names = [open(f"/proc/{p}/cmdline").read() for p in os.listdir("/proc") if p.isdigit()]
print("foreign", [n for n in names if "py" "test" in n])
for p in filter(str.isdigit, os.listdir("/proc")):
    try:
        if "SPECPILOT" in open(f"/proc/{p}/environ").read(): print("GOT environment of", p)
    except OSError: pass
libc = ctypes.CDLL(None, use_errno=True)
print("ptrace", libc.ptrace(16, 1, 0, 0), "mem", end=" ")
try: open("/proc/1/mem", "rb").read(1); print("GOT")
except OSError as e: print("refused")
try: os.kill(1, 9); print("alive")
except OSError: print("not signalled")
"""
    )
    assert "GOT" not in result.log
    assert "foreign []" in result.log
    assert "ptrace -1 mem refused" in result.log


def test_no_secret_is_in_the_environment(attack, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    monkeypatch.setenv("SPECPILOT_ANYTHING", SECRET)
    result = attack("import os; print(sorted(os.environ), [v for v in os.environ.values() if 'sealed' in v])")
    assert "[]" in result.log
    assert "ANTHROPIC" not in result.log


def test_no_network_neither_out_nor_to_this_machine_nor_abstract_sockets(attack):
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as abstract:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        abstract.bind("\0specpilot-redteam")
        abstract.listen()
        result = attack(
            f"""
import socket
for family, place in ((2, ("127.0.0.1", {listener.getsockname()[1]})), (2, ("1.1.1.1", 53)),
                      (2, ("169.254.169.254", 80)), (1, "\\0specpilot-redteam"),
                      (1, "/run/model/model.sock"), (1, "/var/run/docker.sock")):
    s = socket.socket(family); s.settimeout(1)
    try: s.connect(place); print("GOT", place)
    except OSError: pass
try: socket.socket(17, 3); print("GOT raw socket")
except OSError: pass
try: socket.gethostbyname("example.org"); print("GOT name")
except OSError: pass
print("done")
"""
        )
    assert result.log == "done\n"


def test_nothing_outside_work_and_tmp_can_be_written(attack):
    import sysconfig

    places = ["/usr/lib", "/in", "/in/tree/overlays", "/etc", "/dev/shm", "/proc/sys/kernel/core_pattern", "/"]
    places += [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), os.path.expanduser("~")]
    result = attack(
        f"""
import os
for place in {places!r}:
    for target in (place, os.path.join(place, "x")):
        try: open(target, "w").close(); print("GOT", target)
        except OSError: pass
print("done")
"""
    )
    assert result.log == "done\n"


def test_a_fork_bomb_stays_small_and_dies(attack):
    before = len(psutil.pids())
    result = attack(
        "import os, time\nn = 0\nwhile True:\n try:\n  if os.fork() == 0: time.sleep(60)\n  n += 1\n"
        " except OSError: break\nprint('stopped at', n, flush=True); os._exit(0)"
    )
    assert (result.ended == "processes") or int(result.log.split()[-1]) < 24
    assert len(psutil.pids()) < before + 20


def test_a_disk_filler_fills_its_own_four_megabytes(attack):
    free = os.statvfs("/tmp").f_bavail
    result = attack(
        """
import os
total = 0
for place in ("/task", "/tmp"):
    try:
        with open(place + "/fill", "wb") as f:
            while True: total += f.write(bytes(1 << 16)); f.flush()
    except OSError as e: print(e.errno)
    finally: os.path.exists(place + "/fill") and os.unlink(place + "/fill")
print("wrote", total >> 20)
"""
    )
    assert result.ok
    assert int(result.log.split()[-1]) <= 8
    assert abs(os.statvfs("/tmp").f_bavail - free) < 2**18


def test_memory_in_many_processes_is_summed(attack):
    result = attack(
        "import os, time\nfor _ in range(8):\n if os.fork() == 0:\n  b = bytearray(b'x') * (60 << 20); time.sleep(30)\n"
        "time.sleep(30)"
    )
    assert result.ended == "memory"


def test_a_busy_loop_and_a_sleeper_are_ended(attack):
    assert attack("while True: pass", cpu_s=1).code not in (0, None)


def test_new_namespaces_mounts_and_raised_limits_are_refused(attack):
    result = attack(
        """
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
for name, flag in (("user", 0x10000000), ("mount", 0x20000), ("net", 0x40000000), ("pid", 0x20000000)):
    if libc.unshare(flag) == 0: print("GOT", name)
if libc.mount(b"none", b"/tmp", b"tmpfs", 0, b"size=1g") == 0: print("GOT mount")
if libc.chroot(b"/tmp") == 0: print("GOT chroot")
for limit in (resource.RLIMIT_NPROC, resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):
    try: resource.setrlimit(limit, (resource.RLIM_INFINITY,) * 2); print("GOT limit", limit)
    except (ValueError, OSError): pass
try: os.setuid(0); print("GOT root")
except OSError: pass
print("done")
"""
    )
    assert result.log == "done\n"


def test_a_link_swapped_in_while_the_patch_is_read_shows_nothing_from_outside(attack, incumbent, tmp_path):
    """The race is lost by design: who reads the folder stands in the same jail."""
    result = attack(
        """
import os, sys
if os.fork() == 0:
    place = "/task/overlays/toy/notes.md"
    for n in range(20000):
        try:
            os.symlink("/etc/passwd" if n % 2 else "/in/run.json", place + ".l"); os.replace(place + ".l", place)
            open(place + ".f", "w").close(); os.replace(place + ".f", place)
        except OSError: pass
    os._exit(0)
print("parent done")
"""
    )
    assert "root:x:0" not in result.patch
    if "120000" in result.patch:
        assert "symbolic link" in check_patch(result.patch, incumbent, tmp_path / "out").reasons[0]


def test_a_forged_result_is_still_only_a_patch(attack, incumbent, tmp_path):
    """The agent prints the jail's result itself: it can claim any patch, which meets the same gate."""
    forged = '{"code": 0, "patch": "diff --git a/x b/x", "note": "", "log": "promote"}'
    result = attack(
        f"""
import os, signal
for p in filter(str.isdigit, os.listdir("/proc")):
    try:
        if b"inside.py" in open(f"/proc/{{p}}/cmdline", "rb").read() and int(p) != 1:
            open(f"/proc/{{p}}/fd/1", "w").write({forged!r})
            os.kill(int(p), signal.SIGKILL)
    except OSError: pass
"""
    )
    assert result.ended in ("broken", "exit", "killed")
    assert not check_patch(result.patch, incumbent, tmp_path / "out").ok


def test_an_endless_note_log_and_patch_are_cut(attack):
    result = attack("import os\nwhile True: print('x' * 65536)", wall_s=5.0)
    assert len(result.log) <= 200_000
    result = attack("open('/task/overlays/toy/big.md', 'w').write('line\\n' * 500000)", disk_mib=8)
    assert result.ended == "output"
    assert result.patch == ""


def test_a_symbolic_link_in_the_overlay_is_not_followed_out_when_it_is_exported(loop, tmp_path):
    from specpilot_sglang.errors import SpecPilotError
    from specpilot_sglang.loop.jail.export import export

    overlay = loop / "generations" / "0000" / "toy"
    (overlay / "notes.md").symlink_to(loop / "controller.key")
    with pytest.raises(SpecPilotError, match="link or special file"):
        export(overlay, None, {}, tmp_path / "inputs2")


def test_a_server_under_test_sees_neither_the_loop_nor_secrets(loop, jail, monkeypatch):
    """The overlay's Python runs in the server: there the folder of the loop is empty but for its own overlay."""
    import subprocess
    import sys

    from specpilot_sglang.eval.arms import Arm
    from specpilot_sglang.loop.jail.server import jailed_server

    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    (loop.parent / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(loop.parent / "scratch"))  # the loop's folder is not below it
    overlay = loop / "generations" / "0000" / "toy"
    server = jailed_server(Arm("candidate", (), overlay=str(overlay)), loop / "x.log", hidden=loop)
    program = f"""
import os
print(sorted(os.listdir({str(loop)!r})), os.path.exists({str(overlay / "overlay.yaml")!r}))
for place in ({str(overlay / "x")!r}, "/usr/x", {str(Path(__file__).parent / "x")!r}, os.path.expanduser("~/x")):
    try: open(place, "w").close(); print("GOT", place)
    except OSError: pass
print([p for p in os.listdir("/proc") if p == "{os.getpid()}" and "py" "test" in open(f"/proc/{{p}}/cmdline").read()])
"""
    walls = server.command[: server.command.index("--") + 1]
    done = subprocess.run(
        [*walls, sys.executable, "-c", program], env=server.env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "['generations'] True\n[]\n", done.stdout + done.stderr
    assert SECRET not in "".join(server.env.values())


def test_the_journal_cannot_be_reached_from_a_jail_while_it_is_written(attack, journal, loop):
    stop = threading.Event()

    def write():
        while not stop.is_set():
            journal.note("tick")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        result = attack(
            f"import sqlite3; sqlite3.connect('file:{loop}/journal.sqlite?mode=rw', uri=True).execute('select 1')"
        )
    finally:
        stop.set()
        writer.join()
    assert result.code != 0
    assert journal.check() == []
