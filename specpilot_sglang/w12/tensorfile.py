"""Packed tensors inside a safetensors shard: names, metadata, decode with hash check."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import numpy as np

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12 import codec, side
from specpilot_sglang.w12.checkpoint import PART_A, PART_B, PART_SIDE, PARTS
from specpilot_sglang.w12.rawfile import Entry, SafetensorsReader
from specpilot_sglang.w12.report import TensorReport
from specpilot_sglang.w12.spec import BASE_DTYPE, FORMAT_VERSION, PLANE_ORDER, U16

_VERSION, _PLANES, _DTYPE = "w12.version", "w12.planes", "w12.base_dtype"
_SOURCE, _REPORTS, _HASHES = "w12.source_header", "w12.tensors", "w12.sha256"
_SOURCE_HASH = "w12.source_header_sha256"


def shard_metadata(
    source: dict[str, str], raw_header: bytes, reports: Iterable[TensorReport], hashes: dict[str, str]
) -> dict[str, str]:
    """Return `__metadata__` of a packed shard: the source's own, and what unpacking and inspection need."""
    return {
        **source,
        _VERSION: str(FORMAT_VERSION),
        _PLANES: PLANE_ORDER,
        _DTYPE: BASE_DTYPE,
        _HASHES: json.dumps(hashes),
        _REPORTS: json.dumps([r.as_json() for r in reports]),
        _SOURCE: raw_header.decode("utf-8"),
        _SOURCE_HASH: hashlib.sha256(raw_header).hexdigest(),
    }


class PackedShard:
    """One open shard of a packed checkpoint.

    Attributes:
        source_header: header bytes of the original shard, exactly.
        hashes: SHA-256 of every original tensor's bytes, hexadecimal.
        reports: what packing did to each tensor.
    """

    def __init__(self, reader: SafetensorsReader) -> None:
        self._reader = reader
        meta = reader.metadata
        if meta.get(_VERSION) != str(FORMAT_VERSION):
            found = f"W12 format version {meta[_VERSION]}" if _VERSION in meta else "not a W12 shard"
            raise W12Error(
                f"{found}; this release reads version {FORMAT_VERSION}",
                where=reader.path,
                fix="use the specpilot-sglang release that packed it, or pack the original again",
            )
        try:
            self.source_header = meta[_SOURCE].encode("utf-8")
            self.hashes: dict[str, str] = dict(json.loads(meta[_HASHES]))
            self.reports = [TensorReport.from_json(r) for r in json.loads(meta[_REPORTS])]
        except (KeyError, ValueError, TypeError, AttributeError) as exc:
            raise W12Error(
                f"its W12 metadata is damaged ({exc})", where=reader.path, fix="pack the original again"
            ) from exc
        found = hashlib.sha256(self.source_header).hexdigest()
        if meta.get(_SOURCE_HASH, found) != found:  # older files lack it
            raise W12Error(
                "the original's header is not the one that was packed (SHA-256 differs)",
                where=reader.path,
                fix="the file is damaged; fetch it again or pack the original again",
            )

    def original(self, entry: Entry, *, check: bool = True) -> U16 | None:
        """Return the bits of a packed tensor, or None when it is stored unchanged.

        Args:
            entry: the tensor in the original header.
            check: compare dtype, shape and hash with the original's.

        Raises:
            W12Error: parts missing or damaged, or (with `check`) a decoded tensor that is not the original.
        """
        where, name = f"{self._reader.path}:{entry.name}", entry.name
        if name in self._reader.entries:
            return None
        missing = [part for part in PARTS if name + part not in self._reader.entries]
        if missing:
            raise W12Error(f"part {missing[0]} is missing", where=where, fix="pack the original again")
        a, b, blob = (self._reader.read(name + part) for part in (PART_A, PART_B, PART_SIDE))
        matrix, header = side.load(a, b, blob.tobytes(), where)
        if entry.dtype != BASE_DTYPE or header.shape != entry.shape:
            raise W12Error(
                f"is BF16{list(header.shape)}, the original was {entry.dtype}{list(entry.shape)}",
                where=where,
                fix="pack the original again",
            )
        bits = codec.decode(matrix)
        if check:
            check_hash(bits, header.sha256, where)
        return bits


def check_hash(bits: np.ndarray, sha256: bytes, where: str) -> None:
    """Raise `W12Error` unless the SHA-256 of `bits` is the one given."""
    if hashlib.sha256(np.ascontiguousarray(bits).data).digest() != sha256:
        raise W12Error(
            "decodes to other bits than were packed (SHA-256 differs)",
            where=where,
            fix="the file is damaged; fetch it again or pack the original again",
        )
