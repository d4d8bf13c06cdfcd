"""W12 checkpoint back to the original: byte-identical files, every tensor checked by its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12.checkpoint import (
    CONFIG,
    INDEX,
    ORIGINALS,
    PARTS,
    Checkpoint,
    open_checkpoint,
    read_json,
    require_packed,
)
from specpilot_sglang.w12.oserrors import os_errors
from specpilot_sglang.w12.pack import fingerprints
from specpilot_sglang.w12.pack_shard import Progress
from specpilot_sglang.w12.rawfile import Entry, SafetensorsReader, parse_header
from specpilot_sglang.w12.rawwriter import discard, publish
from specpilot_sglang.w12.spec import FORMAT_VERSION
from specpilot_sglang.w12.staging import Staging
from specpilot_sglang.w12.tensorfile import PackedShard


def unpack_checkpoint(source: Path, destination: Path, progress: Progress = lambda name, done: None) -> int:
    """Write the original of the packed checkpoint `source` to `destination`; return the number of tensors.

    Raises:
        W12Error: not a packed checkpoint, or a tensor that does not decode to the bits that were packed.
    """
    checkpoint = open_checkpoint(source)
    require_packed(checkpoint)
    originals = {shard: original_entries(checkpoint, shard) for shard in checkpoint.shards}
    needed = sum(e.nbytes for entries in originals.values() for e in entries.values())
    job = {"what": "unpack", "version": FORMAT_VERSION, "files": fingerprints(checkpoint)}
    with Staging(destination, (checkpoint.path,), job, needed) as staging:
        for shard, entries in originals.items():
            if staging.done(shard) is None:
                _unpack_shard(checkpoint.path / shard, entries, staging.path / shard, progress)
                staging.finish(shard, True)
            else:
                for entry in entries.values():
                    progress(entry.name, entry.nbytes)
        _restore_small_files(checkpoint, staging)
        staging.commit()
    return sum(len(entries) for entries in originals.values())


def original_entries(checkpoint: Checkpoint, shard: str) -> dict[str, Entry]:
    """Return the original shard's tensors; checks that the packed shard holds these and no others.

    Raises:
        W12Error: damaged metadata, another format version, a tensor missing or too many.
    """
    path = checkpoint.path / shard
    with SafetensorsReader(path) as reader:
        entries = parse_header(PackedShard(reader).source_header, path)[1]
        stored = {name.removesuffix(part) for name in reader.entries for part in PARTS if name.endswith(part)}
        stored |= {name for name in reader.entries if not name.endswith(PARTS)}
    different = sorted(stored ^ entries.keys())
    if different:
        state = "is missing" if different[0] in entries else "does not belong to the original"
        raise W12Error(f"tensor {different[0]!r} {state}", where=path, fix="pack the original again")
    return entries


def _unpack_shard(path: Path, entries: dict[str, Entry], target: Path, progress: Progress) -> None:
    tmp = target.with_name(target.name + ".tmp")
    with SafetensorsReader(path) as reader, os_errors(target, "write"):
        shard = PackedShard(reader)
        file = tmp.open("wb")
        try:
            file.write(len(shard.source_header).to_bytes(8, "little") + shard.source_header)
            for entry in entries.values():
                for piece in _pieces(reader, shard, entry):
                    file.write(piece)
                progress(entry.name, entry.nbytes)
            publish(file, tmp, target)
        finally:
            discard(file, tmp)


def _pieces(reader: SafetensorsReader, shard: PackedShard, entry: Entry) -> Iterator[bytes | memoryview]:
    bits = shard.original(entry)
    if bits is not None:
        yield np.ascontiguousarray(bits).data
        return
    digest = hashlib.sha256()
    for piece in reader.chunks(entry.name):
        digest.update(piece)
        yield piece
    if digest.hexdigest() != shard.hashes.get(entry.name):
        raise W12Error(
            "is not the tensor that was packed (SHA-256 differs)",
            where=f"{reader.path}:{entry.name}",
            fix="the file is damaged; fetch it again or pack the original again",
        )


def _restore_small_files(checkpoint: Checkpoint, staging: Staging) -> None:
    originals = checkpoint.path / ORIGINALS
    config = {k: v for k, v in checkpoint.config.items() if k != "quantization_config"}
    untouched = {**config, "quantization_config": None}  # a model that is not quantised may say so
    if (originals / CONFIG).exists() and {"quantization_config": None, **read_json(originals / CONFIG)} == untouched:
        staging.copy(originals / CONFIG, Path(CONFIG))
    else:  # edited since it was packed: keep the edit
        staging.write(CONFIG, (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode())
    if (originals / INDEX).exists():
        staging.copy(originals / INDEX, Path(INDEX))
    for name in checkpoint.other_files():
        staging.copy(checkpoint.path / name, name)
