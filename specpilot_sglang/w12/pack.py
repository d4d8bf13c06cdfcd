"""BF16 checkpoint to W12 checkpoint, one tensor at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12 import codec, side
from specpilot_sglang.w12.checkpoint import (
    CONFIG,
    INDEX,
    ORIGINALS,
    PART_A,
    PART_B,
    PART_SIDE,
    PARTS,
    QUANT_METHOD,
    Checkpoint,
    open_checkpoint,
    require_plain,
)
from specpilot_sglang.w12.oserrors import os_errors
from specpilot_sglang.w12.rawfile import DTYPE_BITS, Entry, SafetensorsReader, SafetensorsWriter
from specpilot_sglang.w12.report import TensorReport, totals
from specpilot_sglang.w12.spec import DEFAULT_MAX_BITS, FORMAT_VERSION, W12Matrix, matrix_shape
from specpilot_sglang.w12.staging import Staging
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


def pack_checkpoint(
    source: Path, destination: Path, options: PackOptions, progress: Progress = lambda name, done: None
) -> list[TensorReport]:
    """Write `source` to `destination` with its BF16 matrices in W12.

    Peak memory is about three times the largest tensor. Every tensor is decoded again and compared bit for bit
    before it is written. The source is only read.

    Raises:
        W12Error: see `checkpoint.open_checkpoint` and `staging.Staging`; also when nothing can be packed.
    """
    checkpoint = open_checkpoint(source)
    require_plain(checkpoint)
    _require_something(checkpoint, options)
    job = {"what": "pack", "version": FORMAT_VERSION, "max_bits": options.max_bits, "exclude": options.exclude}
    job["files"] = fingerprints(checkpoint)
    reports: list[TensorReport] = []
    with Staging(destination, (checkpoint.path,), job, _least_bytes(checkpoint, options)) as staging:
        for shard in checkpoint.shards:
            note = staging.done(shard)
            if note is None:
                made = _pack_shard(checkpoint, shard, staging.path / shard, options, progress)
                staging.finish(shard, [r.as_json() for r in made])
            else:
                made = [TensorReport.from_json(r) for r in note]
                for report in made:
                    progress(report.name, checkpoint.tensors[shard][report.name].nbytes)
            reports += made
        if not any(r.packed for r in reports):
            staging.forget()
            raise W12Error(
                f"no tensor fits into {options.max_bits} bits per weight",
                where=checkpoint.path,
                fix="serve this model as BF16, or raise --max-bits",
            )
        _write_small_files(checkpoint, staging, reports, options)
        staging.commit()
    return reports


def fingerprints(checkpoint: Checkpoint) -> list[list[Any]]:
    """Return name, size and modification time of the files a job reads."""
    files = (CONFIG, *([INDEX] if checkpoint.index is not None else []), *checkpoint.shards)
    with os_errors(checkpoint.path, "read"):
        stats = [(name, (checkpoint.path / name).stat()) for name in files]
    return [[str(checkpoint.path / name), s.st_size, s.st_mtime_ns] for name, s in stats]


def _require_something(checkpoint: Checkpoint, options: PackOptions) -> None:
    entries = [e for shard in checkpoint.tensors.values() for e in shard.values()]
    for entry in entries:
        if entry.name.endswith(PARTS):
            raise W12Error(
                f"tensor {entry.name!r} looks packed already", where=checkpoint.path, fix="name the original BF16 model"
            )
    if all(options.keep_reason(e) for e in entries):
        dtypes = ", ".join(sorted({e.dtype for e in entries})) or "no tensors"
        raise W12Error(
            f"nothing to pack: no BF16 matrix that is not excluded (found {dtypes})",
            where=checkpoint.path,
            fix="W12 packs BF16 models; serve other models as they are",
        )


def _least_bytes(checkpoint: Checkpoint, options: PackOptions) -> int:
    entries = [e for shard in checkpoint.tensors.values() for e in shard.values()]
    return sum(e.nbytes if options.keep_reason(e) else e.nbytes * 3 // 4 for e in entries)


def _pack_shard(
    checkpoint: Checkpoint, shard: str, target: Path, options: PackOptions, progress: Progress
) -> list[TensorReport]:
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


def _write_small_files(
    checkpoint: Checkpoint, staging: Staging, reports: list[TensorReport], options: PackOptions
) -> None:
    summary = totals(reports)
    config = dict(checkpoint.config)
    config["quantization_config"] = {
        "quant_method": QUANT_METHOD,
        "version": FORMAT_VERSION,
        "max_bits": options.max_bits,
        "exclude": list(options.exclude),
        "bits_per_weight": round(summary.bits_per_weight, 5),
    }
    staging.write(CONFIG, _json_bytes(config))
    staging.copy(checkpoint.path / CONFIG, Path(ORIGINALS) / CONFIG)
    if checkpoint.index is not None:
        weight_map = {
            name: r.shard for r in reports for name in ([r.name + p for p in PARTS] if r.packed else [r.name])
        }
        metadata = {**(checkpoint.index.get("metadata") or {}), "total_size": summary.all_bytes}
        staging.write(INDEX, _json_bytes({"metadata": metadata, "weight_map": weight_map}))
        staging.copy(checkpoint.path / INDEX, Path(ORIGINALS) / INDEX)
    for name in checkpoint.other_files():
        staging.copy(checkpoint.path / name, name)


def _json_bytes(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
