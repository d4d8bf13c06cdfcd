"""Compares a packed checkpoint with its original bit for bit, and describes packed checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specpilot_sglang.w12.checkpoint import Checkpoint, open_checkpoint, require_packed, require_plain
from specpilot_sglang.w12.pack_shard import Progress
from specpilot_sglang.w12.rawfile import Entry, SafetensorsReader
from specpilot_sglang.w12.report import TensorReport
from specpilot_sglang.w12.tensorfile import PackedShard
from specpilot_sglang.w12.unpack import original_entries


@dataclass(frozen=True)
class Mismatch:
    """One tensor that is not the original's: its name and what differs."""

    name: str
    what: str


def verify_checkpoint(
    original: Path, packed: Path, progress: Progress = lambda name, done: None
) -> tuple[int, list[Mismatch]]:
    """Decode every tensor of `packed` and compare its bits with `original`.

    Returns:
        Number of tensors compared, and the mismatches.

    Raises:
        W12Error: a folder that cannot be read, or packed data that cannot be decoded at all.
    """
    left, right = open_checkpoint(original), open_checkpoint(packed)
    require_plain(left)
    require_packed(right)
    homes = {name: shard for shard in right.shards for name in original_entries(right, shard)}
    mismatches = [Mismatch(name, "is not in the original") for name in homes if not _holds(left, name)]
    count = 0
    for shard in left.shards:
        with SafetensorsReader(left.path / shard) as reader:
            for entry in reader.entries.values():
                what = _compare(reader, entry, right, homes)
                if what:
                    mismatches.append(Mismatch(entry.name, what))
                count += 1
                progress(entry.name, entry.nbytes)
    return count, mismatches


def inspect_checkpoint(packed: Path) -> list[TensorReport]:
    """Return what packing did to each tensor of a packed checkpoint; reads headers only.

    Raises:
        W12Error: not a packed checkpoint, or damaged.
    """
    checkpoint = open_checkpoint(packed)
    require_packed(checkpoint)
    reports: list[TensorReport] = []
    for shard in checkpoint.shards:
        original_entries(checkpoint, shard)
        with SafetensorsReader(checkpoint.path / shard) as reader:
            reports += PackedShard(reader).reports
    return reports


def _holds(checkpoint: Checkpoint, name: str) -> bool:
    return any(name in entries for entries in checkpoint.tensors.values())


def _compare(reader: SafetensorsReader, entry: Entry, packed: Checkpoint, homes: dict[str, str]) -> str:
    """Return what differs between a tensor and its packed form, empty when nothing does."""
    home = homes.get(entry.name)
    if home is None:
        return "is not in the packed checkpoint"
    with SafetensorsReader(packed.path / home) as other:
        stored = PackedShard(other)
        theirs = original_entries(packed, home)[entry.name]
        if (theirs.dtype, theirs.shape) != (entry.dtype, entry.shape):
            return f"is {theirs.dtype}{list(theirs.shape)}, the original {entry.dtype}{list(entry.shape)}"
        bits = stored.original(theirs, check=False)
        if bits is None:
            return _compare_bytes(reader, other, entry)
        expected = reader.read(entry.name).view("<u2")
        wrong = np.flatnonzero(bits.ravel() != expected)
    return f"{wrong.size} of {expected.size} weights differ, first at {wrong[0]}" if wrong.size else ""


def _compare_bytes(left: SafetensorsReader, right: SafetensorsReader, entry: Entry) -> str:
    for ours, theirs in zip(left.chunks(entry.name), right.chunks(entry.name), strict=True):
        if ours != theirs:
            return "bytes differ"
    return ""
