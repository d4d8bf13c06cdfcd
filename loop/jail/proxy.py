"""The model proxy: the only way out of a jail. It holds the key, knows one host, and stops at the caps.

Runs as a process of its own: `python -m specpilot_sglang.loop.jail.proxy SETTINGS`, the key in the variable
`SPECPILOT_MODEL_KEY`, which it takes out of its environment at once.
"""

from __future__ import annotations

import json
import os
import re
import socketserver
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict

from specpilot_sglang.loop.jail.usage import Caps, Ledger

KEY_VARIABLE = "SPECPILOT_MODEL_KEY"
#: What agents may ask for; everything else is refused.
_ALLOWED = re.compile(r"/v1/(messages(/count_tokens)?|models(/[\w.-]+)?)(\?[\w=&.-]*)?")
_PASSED = ("content-type", "anthropic-version", "anthropic-beta", "accept")
_MOST_BODY = 32 * 2**20


class ProxySettings(BaseModel):
    """What the proxy is told.

    Attributes:
        socket: path of its unix socket.
        upstream: the one address that requests go to.
        ledger: file for what was spent.
        caps: when to stop.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    socket: Path
    upstream: str
    ledger: Path
    caps: Caps


class Usage:
    """Tokens of one answer, read from the stream as it passes."""

    def __init__(self) -> None:
        self.tokens_in = self.tokens_out = 0
        self._rest = b""

    def read(self, chunk: bytes) -> None:
        """Look at a piece of the answer: one JSON object, or server-sent events."""
        self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self._line(line)

    def close(self) -> None:
        """Look at what was left without a line end."""
        self._line(self._rest)

    def _line(self, line: bytes) -> None:
        text = line.removeprefix(b"data:").strip()
        if b'"usage"' not in text:
            return
        try:
            row = json.loads(text)
        except ValueError:
            return
        usage = row.get("usage") or (row.get("message") or {}).get("usage") or {}
        read = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        # Events repeat running totals; the largest is the answer's.
        self.tokens_in = max(self.tokens_in, sum(int(usage.get(name) or 0) for name in read))
        self.tokens_out = max(self.tokens_out, int(usage.get("output_tokens") or 0))


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, settings: ProxySettings, key: str) -> None:
        self.settings, self.key = settings, key
        self.ledger = Ledger(settings.ledger, settings.caps)
        self.client = httpx.Client(base_url=settings.upstream, timeout=600.0, follow_redirects=False, trust_env=False)
        before = os.umask(0)  # the jail's user is another one
        super().__init__(str(settings.socket), _Handler)
        os.umask(before)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        """Forward a GET."""
        self._forward("GET")

    def do_POST(self) -> None:
        """Forward a POST."""
        self._forward("POST")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the ledger is the log."""

    def address_string(self) -> str:
        """Return the peer's name; unix sockets have none."""
        return "agent"

    def _forward(self, method: str) -> None:
        length = int(self.headers.get("content-length") or 0)
        if length > _MOST_BODY:
            return self._refuse(413, "too_large", "the request is too large")
        # Read before anything is refused: closing with unread data resets the connection, and the answer is lost.
        body = self.rfile.read(length)
        if not _ALLOWED.fullmatch(self.path):
            return self._refuse(403, "forbidden", f"{method} {self.path[:100]} is not a model request")
        if cap := self.server.ledger.spent().over(self.server.settings.caps):
            return self._refuse(429, "budget", f"the budget of {cap} is used up")
        headers = {name: self.headers[name] for name in _PASSED if name in self.headers}
        headers |= {"x-api-key": self.server.key, "accept-encoding": "identity"}
        usage, status = Usage(), 502
        try:
            with self.server.client.stream(method, self.path, content=body, headers=headers) as answer:
                status = answer.status_code
                self._answer(answer, usage)
        except httpx.HTTPError as exc:
            self._refuse(502, "upstream", f"the model API cannot be reached ({type(exc).__name__})")
        finally:
            usage.close()
            self.server.ledger.add(usage.tokens_in, usage.tokens_out, status)

    def _answer(self, answer: httpx.Response, usage: Usage) -> None:
        self.send_response(answer.status_code)
        self.send_header("content-type", answer.headers.get("content-type", "application/json"))
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for chunk in _pieces(answer):
            usage.read(chunk)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _refuse(self, status: int, kind: str, message: str) -> None:
        body = json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
        self.close_connection = True
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _pieces(answer: httpx.Response) -> Iterator[bytes]:
    yield from (chunk for chunk in answer.iter_raw() if chunk)


def main() -> None:
    """Serve until the process is ended."""
    settings = ProxySettings.model_validate_json(sys.argv[1])
    key = os.environ.pop(KEY_VARIABLE, "")
    with _Server(settings, key) as server:
        server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
