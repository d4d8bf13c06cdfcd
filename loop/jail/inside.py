"""Runs inside the jail: copies the tree, runs the agent, and prints the difference it made as one JSON object.

Standard library only, and nothing of the package: it is mounted as a single file. Nothing depends on its honesty; the
agent runs as the same user and could print the object itself.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

IN, WORK, LOG = Path("/in"), Path("/task"), Path("/tmp", "agent.log")
SOCKET, PORT = "/run/model/model.sock", 8377
_TAIL = 200_000


def main() -> None:
    """Run the job that `/in/run.json` describes."""
    job = json.loads((IN / "run.json").read_text())
    for entry in (IN / "tree").iterdir():  # `/task` itself belongs to somebody else
        shutil.copytree(entry, WORK / entry.name) if entry.is_dir() else shutil.copy(entry, WORK)
    for place in WORK.rglob("*"):
        place.chmod(place.stat().st_mode | stat.S_IWUSR)
    if job["forward"]:
        threading.Thread(target=_forward, args=(_listen(),), daemon=True).start()
    with LOG.open("wb") as log:
        done = subprocess.run(job["command"], cwd=WORK, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
    result = {"code": done.returncode, "patch": "".join(_patch(job["folders"])), "note": _note(), "log": _log()}
    sys.stdout.write(json.dumps(result))


def _note() -> str:
    for name in ("note.json", "note.md"):
        path = WORK / name
        if path.is_file() and not path.is_symlink():
            return path.read_bytes()[:65536].decode("utf-8", "replace")
    return ""


def _log() -> str:
    data = LOG.read_bytes() if LOG.exists() else b""
    return data[-_TAIL:].decode("utf-8", "replace")


def _patch(folders: list[str]) -> Iterator[str]:
    """Yield a diff, in git's format, of everything under `folders`; links and binaries show as what they are."""
    names = {n for root in (IN / "tree", WORK) for folder in folders for n in _entries(root, folder)}
    for name in sorted(names):
        old, new = IN / "tree" / name, WORK / name
        before, after = _content(old), _content(new)
        if before == after and _mode(old) == _mode(new):
            continue
        yield f"diff --git a/{name} b/{name}\n"
        if before is None:
            yield f"new file mode {_mode(new)}\n"
        elif after is None:
            yield f"deleted file mode {_mode(old)}\n"
        elif _mode(old) != _mode(new):
            yield f"old mode {_mode(old)}\nnew mode {_mode(new)}\n"
        if before == after:
            continue
        texts = [_text(before), _text(after)]
        if texts[0] is None or texts[1] is None:
            yield f"Binary files a/{name} and b/{name} differ\n"
            continue
        labels = ("/dev/null" if before is None else f"a/{name}", "/dev/null" if after is None else f"b/{name}")
        for line in difflib.unified_diff(texts[0], texts[1], *labels):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _entries(root: Path, folder: str) -> Iterator[str]:
    for place, folders, files in os.walk(root / folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in [*files, *links]:
            if "__pycache__" not in Path(place).parts:
                yield (Path(place) / name).relative_to(root).as_posix()


def _mode(path: Path) -> str:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return "000000"
    if stat.S_ISLNK(mode):
        return "120000"
    if not stat.S_ISREG(mode):
        return "160000"  # a device, pipe or socket: no kind of file that a patch may have
    return "100755" if mode & stat.S_IXUSR else "100644"


def _content(path: Path) -> bytes | None:
    kind = _mode(path)
    if kind == "000000":
        return None
    if kind == "120000":
        return os.fsencode(path.readlink())
    return path.read_bytes() if kind.startswith("100") else b""


def _text(content: bytes | None) -> list[str] | None:
    if content is None:
        return []
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text.splitlines(keepends=True)


def _listen() -> socket.socket:
    server = socket.socket()
    server.bind(("127.0.0.1", PORT))
    server.listen()
    return server


def _forward(server: socket.socket) -> None:
    """Carry connections to the loopback port over to the proxy's socket."""
    while True:
        client, _ = server.accept()
        upstream = socket.socket(socket.AF_UNIX)
        try:
            upstream.connect(SOCKET)
        except OSError:
            client.close()
            continue
        for a, b in ((client, upstream), (upstream, client)):
            threading.Thread(target=_pump, args=(a, b), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        sink.close()


if __name__ == "__main__":
    main()
