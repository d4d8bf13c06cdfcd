"""One shard of a BF16 checkpoint to W12, one tensor at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12 import codec, side
from specpilot_sglang.w12.checkpoint import PART_A, PART_B, PART_SIDE, PARTS, Checkpoint
from specpilot_sglang.w12.rawfile import DTYPE_BITS, Entry, SafetensorsReader
from specpilot_sglang.w12.rawwriter import SafetensorsWriter
from specpilot_sglang.w12.report import TensorReport
from specpilot_sglang.w12.spec import DEFAULT_MAX_BITS, W12Matrix, matrix_shape
from specpilot_sglang.w12.tensorfile import shard_metadata

#: Called with a tensor's name and the source bytes that are done with it.
Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class PackOptions:
    """What to pack.

    Attributes:
        max_bits: a tensor that takes more bits per weight stays BF16.
        exclude: tensors whose name contains one of these stay BF16.
    """

    max_bits: float = DEFAULT_MAX_BITS
    exclude: tuple[str, ...] = ()

    def keep_reason(self, entry: Entry) -> str:
        """Return why a tensor cannot or shall not be packed, empty when it is to be tried."""
        if entry.dtype != "BF16":
            return f"{entry.dtype}, not BF16"
        if len(entry.shape) < 2:
            return "not a matrix"
        if entry.nbytes == 0:
            return "empty"
        matched = next((text for text in self.exclude if text in entry.name), None)
        return f"excluded by {matched!r}" if matched is not None else ""


def pack_shard(
    checkpoint: Checkpoint, shard: str, target: Path, options: PackOptions, progress: Progress
) -> list[TensorReport]:
    """Write the packed form of one shard to `target` and report on its tensors.

    Raises:
        W12Error: reading or writing failed; `target` does not exist then.
    """
    reports: dict[str, TensorReport] = {}
    hashes: dict[str, str] = {}
    source, raw_header = checkpoint.metadata[shard], checkpoint.headers[shard]
    with (
        SafetensorsReader(checkpoint.path / shard) as reader,
        SafetensorsWriter(target, _header_room(checkpoint, shard)) as writer,
    ):
        for name, entry in reader.entries.items():
            reason = options.keep_reason(entry)
            if not reason:
                reports[name], hashes[name] = _pack_tensor(reader, entry, shard, writer, options)
                reason = reports[name].reason
            if reason:
                reports[name] = TensorReport(name, entry.dtype, entry.shape, shard, False, reason, entry.nbytes)
            else:
                progress(name, entry.nbytes)
        # Packed parts are bytes and fill multiples of 16, so tensors behind them are aligned, widest first.
        kept = [reader.entries[r.name] for r in reports.values() if not r.packed]
        for entry in sorted(kept, key=lambda e: -DTYPE_BITS[e.dtype]):
            hashes[entry.name] = _copy_tensor(reader, entry, writer)
            progress(entry.name, entry.nbytes)
        writer.finish(shard_metadata(source, raw_header, reports.values(), hashes))
    return list(reports.values())


def _pack_tensor(
    reader: SafetensorsReader, entry: Entry, shard: str, writer: SafetensorsWriter, options: PackOptions
) -> tuple[TensorReport, str]:
    n, k = matrix_shape(entry.shape)
    raw = reader.read(entry.name)
    digest = hashlib.sha256(raw.data)
    bits = raw.view("<u2").reshape(n, k)
    matrix = codec.encode(bits)
    needs = matrix.bits_per_weight(len(entry.shape))
    reason = f"needs {needs:.3f} bits per weight" if needs > options.max_bits else ""
    if not reason:
        if not np.array_equal(codec.decode(matrix), bits):
            raise W12Error("does not decode to its own bits", where=f"{reader.path}:{entry.name}", fix="report a bug")
        _append(writer, entry, matrix, digest.digest())
    stored = entry.nbytes if reason else round(needs * n * k / 8)
    report = TensorReport(
        entry.name,
        entry.dtype,
        entry.shape,
        shard,
        not reason,
        reason,
        stored,
        matrix.escapes,
        matrix.zeros,
        matrix.worst_row,
        matrix.zero_code,
    )
    return report, digest.hexdigest()


def _append(writer: SafetensorsWriter, entry: Entry, matrix: W12Matrix, sha256: bytes) -> None:
    blob = side.dump(matrix, entry.shape, sha256)
    writer.append(entry.name + PART_A, "U8", matrix.a.shape, matrix.a)
    writer.append(entry.name + PART_B, "U8", matrix.b.shape, matrix.b)
    writer.append(entry.name + PART_SIDE, "U8", (len(blob),), blob)


def _copy_tensor(reader: SafetensorsReader, entry: Entry, writer: SafetensorsWriter) -> str:
    digest = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        for piece in reader.chunks(entry.name):
            digest.update(piece)
            yield piece

    writer.append(entry.name, entry.dtype, entry.shape, pieces())
    return digest.hexdigest()


def _header_room(checkpoint: Checkpoint, shard: str) -> int:
    """Return a size that the packed shard's header cannot exceed: that of one with the longest figures."""
    big = 10**15
    entries = checkpoint.tensors[shard].values()
    worst = [TensorReport(e.name, e.dtype, e.shape, shard, True, "." * 120, big, big, big, big) for e in entries]
    reasons = sum(len(json.dumps(json.dumps(r.name))) for r in worst)  # an exclusion repeats a part of the name
    metadata = shard_metadata(
        checkpoint.metadata[shard], checkpoint.headers[shard], worst, {e.name: "0" * 64 for e in entries}
    )
    offsets = {
        e.name + part: {"dtype": "U8", "shape": [*e.shape, big], "data_offsets": [big, big]}
        for e in entries
        for part in PARTS
    }
    return len(json.dumps({"__metadata__": metadata, **offsets})) + reasons
