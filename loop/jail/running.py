"""Runs a jail, watches what all its processes use together, and ends it at a limit."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import psutil

from specpilot_sglang.eval.files import write_whole
from specpilot_sglang.loop.jail import cgroup, inside
from specpilot_sglang.loop.jail.bubblewrap import jail_command
from specpilot_sglang.loop.jail.limits import MIB, Limits
from specpilot_sglang.loop.jail.seccomp import agent_filter
from specpilot_sglang.loop.jail.spec import JailResult, JailSpec

_POLL_S = 0.1
#: Variable of bwrap's own environment that holds `JailSpec.label`.
LABEL = "SPECPILOT_JAIL"
#: Folders whose changes come out as the patch.
FOLDERS = ("overlays", "kernels")


def run_in_jail(spec: JailSpec, *, root: bool | None = None) -> JailResult:
    """Run the agent's command in a jail and return what it left.

    Args:
        spec: the run; `run.json` is written into its `inputs`.
        root: see `bubblewrap.jail_command`.

    Raises:
        SpecPilotError: bubblewrap or another part of the jail is missing.
    """
    job = {"command": list(spec.command), "folders": list(FOLDERS), "forward": spec.socket_dir is not None}
    write_whole(spec.inputs / "run.json", json.dumps(job), fix="free space")
    shutil.copyfile(inside.__file__, spec.inputs / "inside.py")
    readable(spec.inputs)
    with tempfile.TemporaryDirectory(prefix="specpilot-jail-") as name:
        rules = Path(name) / "filter.bpf"
        rules.write_bytes(agent_filter())
        with rules.open("rb") as handle, (Path(name) / "arguments").open("w+b") as arguments:
            command = jail_command(spec, handle.fileno(), root=root)
            # From a file: bwrap's own command line can be read inside, and names places of this machine.
            options, program = command[1 : command.index("--")], command[command.index("--") :]
            arguments.write(b"\0".join(map(os.fsencode, options)) + b"\0")
            arguments.seek(0)
            hidden = [command[0], "--args", str(arguments.fileno()), *program]
            return _run(hidden, (handle.fileno(), arguments.fileno()), spec)


def end_labelled(label: str) -> list[int]:
    """End jails with this label that a killed controller left, and return the ids of the processes ended.

    bwrap ends with its controller by itself, but not when that one was killed before bwrap had asked for it.
    """
    ended = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if label and process.environ().get(LABEL) == label:
                process.kill()
                ended.append(process.pid)
    return ended


def _run(command: list[str], files: tuple[int, ...], spec: JailSpec) -> JailResult:
    begin, limits = time.monotonic(), spec.limits
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=files,
        env={LABEL: spec.label} if spec.label else {},
        start_new_session=True,
    )
    watch = _Watch(process, limits)
    try:
        with cgroup.group(process.pid, limits):
            ended, out, err = watch.wait()
    finally:
        _end(process)
    wall = time.monotonic() - begin
    # bwrap itself, which stands outside of what the agent can reach, or the first program inside.
    if ended == "exit" and process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
        ended = "killed"
    return _result(ended, out, err, wall, watch.peak_mib)


def readable(folder: Path) -> None:
    """Let everyone read what is below `folder`: the jail's user owns none of it."""
    for place in [folder, *folder.rglob("*")]:
        if not place.is_symlink():
            place.chmod(place.stat().st_mode | (0o555 if place.is_dir() else 0o444))


class _Watch:
    """Reads output up to its limit, and looks at time, memory and processes."""

    def __init__(self, process: subprocess.Popen[bytes], limits: Limits) -> None:
        self._process, self._limits = process, limits
        self.peak_mib = 0.0
        self._out = [bytearray(), bytearray()]
        self._full = threading.Event()

    def wait(self) -> tuple[str, bytes, bytes]:
        """Return why it ended, its standard output and its errors."""
        pipes = [p for p in (self._process.stdout, self._process.stderr) if p is not None]
        readers = [
            threading.Thread(target=self._read, args=(n, pipe.fileno()), daemon=True) for n, pipe in enumerate(pipes)
        ]
        for reader in readers:
            reader.start()
        ended = self._until_over()
        if ended != "exit":
            _end(self._process)
        for reader in readers:
            reader.join(5.0)
        if self._full.is_set():
            ended = "output"
        return ended, bytes(self._out[0]), bytes(self._out[1])

    def _until_over(self) -> str:
        deadline = time.monotonic() + self._limits.wall_s
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                return "wall"
            if self._full.is_set():
                return "output"
            count, resident = usage(self._process.pid)
            self.peak_mib = max(self.peak_mib, round(resident / MIB, 1))
            if resident > self._limits.memory_mib * MIB:
                return "memory"
            # bwrap's own two processes are not the agent's.
            if count > self._limits.processes + 2:
                return "processes"
            time.sleep(_POLL_S)
        return "exit"

    def _read(self, number: int, fd: int) -> None:
        kept, most = self._out[number], self._limits.output_mib * MIB
        while data := os.read(fd, 65536):
            if len(kept) + len(data) > most:
                self._full.set()
                return
            kept += data


def usage(pid: int) -> tuple[int, int]:
    """Return the number of processes below `pid`, it included, and their resident bytes together."""
    count = resident = 0
    try:
        top = psutil.Process(pid)
        members = [top, *top.children(recursive=True)]
    except psutil.Error:
        return 0, 0
    for process in members:
        try:
            resident += process.memory_info().rss
            count += 1
        except psutil.Error:
            continue
    return count, resident


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill bwrap; the first process of its process namespace dies with it, and the namespace with that one."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
    process.wait()


def _result(ended: str, out: bytes, err: bytes, wall: float, peak: float) -> JailResult:
    tail = err[-4000:].decode("utf-8", "replace").strip()
    if ended != "exit":
        return JailResult(ended, None, log=tail, wall_s=wall, peak_mib=peak)
    try:
        row = json.loads(out)
        texts, code = {name: str(row[name]) for name in ("patch", "note", "log")}, int(row["code"])
        if code == -signal.SIGKILL:
            return JailResult("killed", None, log=texts["log"], wall_s=wall, peak_mib=peak)
        return JailResult("exit", code, **texts, wall_s=wall, peak_mib=peak)
    except (ValueError, KeyError, TypeError):
        return JailResult("broken", None, log=tail, wall_s=wall, peak_mib=peak)
