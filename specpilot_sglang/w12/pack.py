"""BF16 checkpoint to W12 checkpoint, shard by shard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12.checkpoint import (
    CONFIG,
    INDEX,
    ORIGINALS,
    PARTS,
    QUANT_METHOD,
    Checkpoint,
    open_checkpoint,
    require_plain,
)
from specpilot_sglang.w12.oserrors import os_errors
from specpilot_sglang.w12.pack_shard import PackOptions, Progress, pack_shard
from specpilot_sglang.w12.report import TensorReport, totals
from specpilot_sglang.w12.spec import FORMAT_VERSION
from specpilot_sglang.w12.staging import Staging


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
                made = pack_shard(checkpoint, shard, staging.path / shard, options, progress)
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
        theirs = checkpoint.index.get("metadata")
        metadata = {**(theirs if isinstance(theirs, dict) else {}), "total_size": summary.all_bytes}
        staging.write(INDEX, _json_bytes({"metadata": metadata, "weight_map": weight_map}))
        staging.copy(checkpoint.path / INDEX, Path(ORIGINALS) / INDEX)
    for name in checkpoint.other_files():
        staging.copy(checkpoint.path / name, name)


def _json_bytes(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
