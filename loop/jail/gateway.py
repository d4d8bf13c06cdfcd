"""Starts the model proxy beside a jail, and ends it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.processes import die_with_parent
from specpilot_sglang.loop.jail.proxy import KEY_VARIABLE, ProxySettings
from specpilot_sglang.loop.jail.usage import Caps

_START_S = 20.0
#: Hosts that a proxy may be pointed at, beside this machine's loopback.
ALLOWED_HOSTS = ("api.anthropic.com",)


def check_upstream(url: str, allowed: tuple[str, ...] = ALLOWED_HOSTS) -> None:
    """Raise `SpecPilotError` unless `url` is https to an allowed host, or loopback for tests and local models."""
    parts = urlsplit(url)
    local = parts.hostname in ("127.0.0.1", "localhost", "::1")
    if not local and (parts.scheme != "https" or parts.hostname not in allowed):
        fix = f"use https and one of {', '.join(allowed)}, or add the host to agent.allowed_hosts"
        raise SpecPilotError("the model proxy may not talk to this host", where=url, fix=fix)


@contextlib.contextmanager
def gateway(upstream: str, key: str, caps: Caps, ledger: Path, allowed: tuple[str, ...]) -> Iterator[Path]:
    """Run a proxy inside the block; yield the folder of its socket, for `JailSpec.socket_dir`.

    Args:
        upstream: base address of the model API.
        key: its key; it is in the proxy's memory and nowhere else.
        caps: where the proxy stops.
        ledger: file for what is spent.
        allowed: hosts that `upstream` may be on.

    Raises:
        SpecPilotError: the host is not allowed, or the proxy did not start.
    """
    check_upstream(upstream, allowed)
    caps.check()
    with tempfile.TemporaryDirectory(prefix="specpilot-model-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        settings = ProxySettings(socket=folder / "model.sock", upstream=upstream, ledger=ledger, caps=caps)
        command = [sys.executable, "-m", "specpilot_sglang.loop.jail.proxy", settings.model_dump_json()]
        env = {**os.environ, KEY_VARIABLE: key}
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
        try:
            _wait(process, settings.socket)
            yield folder
        finally:
            process.terminate()
            process.wait()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _wait(process: subprocess.Popen[bytes], path: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not _answers(path):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SpecPilotError("the model proxy did not start", where=path, fix="see its message above")
        time.sleep(0.02)
