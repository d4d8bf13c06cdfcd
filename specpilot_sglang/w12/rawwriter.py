"""Writes a safetensors file tensor by tensor, in constant memory, under its final name only when complete."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12.oserrors import os_errors
from specpilot_sglang.w12.rawfile import DTYPE_BITS
from specpilot_sglang.w12.spec import U8


class SafetensorsWriter:
    """Writes a safetensors file whose tensors are not known beforehand, in constant memory.

    The header comes last, into room kept free for it and filled up with blanks. The file is written
    under a temporary name, flushed to disk and renamed: the final name never holds half a file.

    Args:
        path: final name; must not exist.
        header_room: bytes kept for the header.
    """

    def __init__(self, path: Path, header_room: int) -> None:
        self.path = path
        self._tmp = path.with_name(path.name + ".tmp")
        self._room = -(-header_room // 8) * 8
        self._header: dict[str, Any] = {}
        self._at = 0
        with os_errors(path, "write"):
            self._file = self._tmp.open("wb")
            self._file.seek(8 + self._room)

    def append(self, name: str, dtype: str, shape: tuple[int, ...], data: Iterator[bytes] | bytes | U8) -> None:
        """Write one tensor behind the others."""
        begin = self._at
        pieces = iter([data]) if isinstance(data, (bytes, np.ndarray)) else data
        with os_errors(self.path, "write"):
            for piece in pieces:
                self._at += self._file.write(piece.data if isinstance(piece, np.ndarray) else piece)
        expected = math.prod(shape) * DTYPE_BITS[dtype] // 8
        if self._at - begin != expected:
            raise W12Error(f"tensor {name!r} has {self._at - begin} bytes, not {expected}", where=self.path)
        self._header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, self._at]}

    def finish(self, metadata: dict[str, str]) -> int:
        """Write the header, flush to disk, give the file its final name; return its size in bytes."""
        text = json.dumps({"__metadata__": metadata, **self._header}, separators=(",", ":")).encode()
        if len(text) > self._room:
            raise W12Error(f"header of {len(text)} bytes exceeds the {self._room} kept for it", where=self.path)
        with os_errors(self.path, "write"):
            self._file.seek(0)
            self._file.write(self._room.to_bytes(8, "little") + text.ljust(self._room))
            publish(self._file, self._tmp, self.path)
        return 8 + self._room + self._at

    def __enter__(self) -> SafetensorsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        discard(self._file, self._tmp)


def publish(file: Any, tmp: Path, final: Path) -> None:
    """Flush `file` to disk and rename it to `final`."""
    file.flush()
    os.fsync(file.fileno())
    file.close()
    tmp.rename(final)


def discard(file: Any, tmp: Path) -> None:
    """Close a file that was not published and remove it; harmless after `publish`."""
    with contextlib.suppress(OSError):  # closing flushes, which fails again on a full disk
        file.close()
    tmp.unlink(missing_ok=True)
