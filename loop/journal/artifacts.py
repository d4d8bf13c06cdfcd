"""Files by the hash of their content; on disk, synced, before any row names them."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.durable import sync_folder


class ArtifactStore:
    """A folder of content-addressed files.

    Args:
        root: the folder; made when missing.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, content: bytes) -> str:
        """Keep `content` and return its SHA-256; the same content twice is kept once.

        Raises:
            SpecPilotError: it cannot be written.
        """
        digest = hashlib.sha256(content).hexdigest()
        path = self.path(digest)
        if path.exists():
            return digest
        part = path.with_name(f".{digest}.{secrets.token_hex(8)}.part")  # two agents may leave the same at once
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
            part.replace(path)
            sync_folder(path.parent)
        except OSError as exc:
            part.unlink(missing_ok=True)
            fix = "free space or choose another --state"
            raise SpecPilotError(f"cannot keep an artifact ({exc.strerror or exc})", where=path, fix=fix) from exc
        return digest

    def get(self, digest: str) -> bytes:
        """Return the content.

        Raises:
            SpecPilotError: it is missing or is not what its name says.
        """
        path = self.path(digest)
        try:
            content = path.read_bytes()
        except OSError as exc:
            raise SpecPilotError(f"the artifact is gone ({exc.strerror})", where=path, fix="restore it") from exc
        if hashlib.sha256(content).hexdigest() != digest:
            raise SpecPilotError("the artifact was changed", where=path, fix="restore it; its verdicts do not hold")
        return content

    def path(self, digest: str) -> Path:
        """Return where the content of this hash is or would be."""
        return self.root / digest[:2] / digest
