"""Reads safetensors files by the byte offsets in their header, one tensor at a time.

The safetensors package has no BF16 in its numpy framework, and its writer wants all tensors in memory at once.
Format: u64 length of the header, the header (JSON; may end in blanks), then the tensors without holes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12.oserrors import os_errors
from specpilot_sglang.w12.spec import U8

#: Bits of one element of each safetensors dtype.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
#: The safetensors package refuses larger headers.
MAX_HEADER_BYTES = 100_000_000
#: Bytes copied at a time where a tensor is passed through.
COPY_CHUNK = 8 << 20

_DAMAGED_FIX = "the file is damaged or half downloaded; fetch it again"


@dataclass(frozen=True)
class Entry:
    """One tensor of a safetensors file; `begin` and `end` count from the start of the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.end - self.begin


class SafetensorsReader:
    """One open safetensors file, header checked.

    Attributes:
        path: the file.
        raw_header: the header's bytes exactly as stored.
        metadata: the `__metadata__` object.
        entries: tensors by name, in the order of their data.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with os_errors(path, "read"):
            self._file = path.open("rb")
        try:
            self.raw_header, self._data = _read_header(self._file.fileno(), path)
            self.metadata, self.entries = parse_header(self.raw_header, path)
            size = os.fstat(self._file.fileno()).st_size
            _check_extents(self.entries, size - self._data, path)
        except BaseException:
            self._file.close()
            raise

    def read(self, name: str) -> U8:
        """Return the bytes of one tensor, uint8."""
        entry = self.entries[name]
        out = np.empty(entry.nbytes, np.uint8)
        view, at = out.data, 0
        while at < entry.nbytes:
            with os_errors(self.path, "read"):
                got = os.preadv(self._file.fileno(), [view[at : at + (1 << 30)]], self._data + entry.begin + at)
            if got <= 0:
                raise W12Error(f"the file ends inside tensor {name!r}", where=self.path, fix=_DAMAGED_FIX)
            at += got
        return out

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of one tensor, `COPY_CHUNK` at a time."""
        entry = self.entries[name]
        for begin in range(entry.begin, entry.end, COPY_CHUNK):
            with os_errors(self.path, "read"):
                yield os.pread(self._file.fileno(), min(COPY_CHUNK, entry.end - begin), self._data + begin)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> SafetensorsReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_header(fd: int, path: Path) -> tuple[bytes, int]:
    size = os.fstat(fd).st_size
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        raise W12Error(
            f"not a complete safetensors file ({size} bytes, its header claims {length})", where=path, fix=_DAMAGED_FIX
        )
    return os.pread(fd, length, 8), 8 + length


def parse_header(raw: bytes, path: Path) -> tuple[dict[str, str], dict[str, Entry]]:
    """Return `__metadata__` and the tensors, in the order of their data, of a header's bytes.

    Raises:
        W12Error: not valid, or one name twice; `path` is named.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) != len(names):
            double = next(name for name in names if names.count(name) > 1)
            raise W12Error(f"tensor {double!r} stands twice in the header", where=path, fix="save the checkpoint again")
        return dict(pairs)

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
        metadata = header.pop("__metadata__", None) or {}
        if any(not isinstance(value, str) for value in metadata.values()):
            raise ValueError("__metadata__ holds something else than texts")
        entries = [_entry(name, value, path) for name, value in header.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise W12Error(f"the safetensors header is not valid ({exc})", where=path, fix=_DAMAGED_FIX) from exc
    return metadata, {e.name: e for e in sorted(entries, key=lambda e: (e.begin, e.end))}


def _entry(name: str, value: dict[str, Any], path: Path) -> Entry:
    begin, end = value["data_offsets"]
    entry = Entry(name, value["dtype"], tuple(value["shape"]), begin, end)
    if entry.dtype not in DTYPE_BITS:
        raise W12Error(f"tensor {name!r} has the unknown dtype {entry.dtype!r}", where=path, fix=_DAMAGED_FIX)
    if any(not isinstance(d, int) or d < 0 for d in entry.shape):
        raise ValueError(f"shape of {name!r} is {value['shape']}")
    bits = math.prod(entry.shape) * DTYPE_BITS[entry.dtype]
    if bits != 8 * entry.nbytes:
        raise ValueError(f"{name!r}: {entry.dtype}{list(entry.shape)} takes {bits // 8} bytes, not {entry.nbytes}")
    return entry


def _check_extents(entries: dict[str, Entry], size: int, path: Path) -> None:
    at = 0
    for entry in entries.values():
        if entry.begin != at:
            raise W12Error(f"hole or overlap before tensor {entry.name!r}", where=path, fix=_DAMAGED_FIX)
        at = entry.end
    if at != size:
        raise W12Error(f"holds {size} bytes of tensors, its header lists {at}", where=path, fix=_DAMAGED_FIX)
