"""A model folder as users have it: config.json, safetensors shards, perhaps an index, other files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12.oserrors import os_errors
from specpilot_sglang.w12.rawfile import Entry, SafetensorsReader

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
QUANT_METHOD = "w12"
#: Names of a packed tensor's three parts: the original name and one of these.
PART_A, PART_B, PART_SIDE = ".w12_a", ".w12_b", ".w12_side"
PARTS = (PART_A, PART_B, PART_SIDE)
#: Folder inside a packed checkpoint that keeps the originals of the files packing rewrites.
ORIGINALS = "w12_source"
#: Weights in formats that a checkpoint with safetensors does not need.
_OTHER_WEIGHTS = {".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".ot"}


@dataclass(frozen=True)
class Checkpoint:
    """A model folder whose headers were read and found sound.

    Attributes:
        path: the folder, resolved.
        config: config.json.
        index: the index's JSON object, or None for a single file.
        shards: file names that hold the model's tensors, sorted.
        tensors: entry of every tensor by shard.
        metadata: `__metadata__` by shard.
        headers: the header's bytes by shard.
    """

    path: Path
    config: dict[str, Any]
    index: dict[str, Any] | None
    shards: tuple[str, ...]
    tensors: dict[str, dict[str, Entry]]
    metadata: dict[str, dict[str, str]]
    headers: dict[str, bytes]

    @property
    def packed(self) -> bool:
        """Whether config.json says that this checkpoint is W12."""
        return _quant_method(self.config) == QUANT_METHOD

    def where(self, name: str) -> str:
        """Return `file:tensor` for errors."""
        shard = next((s for s, entries in self.tensors.items() if name in entries), "")
        return f"{self.path / shard}:{name}"

    def other_files(self) -> list[Path]:
        """Return paths, relative to the folder, of what packing copies as it is."""
        rewritten = {CONFIG, INDEX, *self.shards}
        found = []
        with os_errors(self.path, "read"):
            for file in sorted(self.path.rglob("*")):
                name = file.relative_to(self.path)
                skip = (
                    not file.is_file()
                    or str(name) in rewritten
                    or name.parts[0] in (ORIGINALS, ".git", ".cache")
                    or file.suffix in _OTHER_WEIGHTS
                    or name.name.startswith("consolidated")
                )
                if not skip:
                    found.append(name)
        return found


def open_checkpoint(path: Path) -> Checkpoint:
    """Read config, index and every shard's header; no tensor data.

    Raises:
        W12Error: not a model folder, an unreadable or damaged file, a shard or tensor the index names
            that does not exist, or one tensor in two shards.
    """
    with os_errors(path, "read"):
        path = path.resolve(strict=True)
    if not path.is_dir():
        raise W12Error("not a folder", where=path, fix="name the model folder that holds config.json")
    if not (path / CONFIG).exists():
        raise W12Error("not a model folder: no config.json", where=path, fix="name a Hugging Face model folder")
    config = read_json(path / CONFIG)
    index = read_json(path / INDEX) if (path / INDEX).exists() else None
    shards = _shards(path, index)
    tensors, metadata, headers = {}, {}, {}
    for shard in shards:
        with SafetensorsReader(path / shard) as reader:
            tensors[shard], metadata[shard], headers[shard] = reader.entries, reader.metadata, reader.raw_header
    _check_unique(path, tensors)
    if index is not None:
        _check_index(path, index["weight_map"], tensors)
    return Checkpoint(path, config, index, shards, tensors, metadata, headers)


def require_plain(checkpoint: Checkpoint) -> None:
    """Raise `W12Error` when the checkpoint is packed or quantised already."""
    if checkpoint.packed:
        raise W12Error("is packed already", where=checkpoint.path / CONFIG, fix="name the original BF16 model")
    method = _quant_method(checkpoint.config)
    if method or "compression_config" in checkpoint.config:
        raise W12Error(
            f"is quantised already ({method or 'compression_config'})",
            where=checkpoint.path / CONFIG,
            fix="W12 packs BF16 models; name the unquantised one",
        )


def require_packed(checkpoint: Checkpoint) -> None:
    """Raise `W12Error` when the checkpoint is not packed with W12."""
    if not checkpoint.packed:
        raise W12Error(
            "is not a W12 checkpoint (no quantization_config with quant_method w12)",
            where=checkpoint.path / CONFIG,
            fix="name a folder written by `specpilot w12 pack`",
        )


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; `W12Error` when it is not one."""
    with os_errors(path, "read"):
        text = path.read_bytes()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise W12Error(f"not valid JSON ({exc})", where=path, fix="repair or fetch the file again") from exc
    if not isinstance(value, dict):
        raise W12Error("not a JSON object", where=path, fix="repair or fetch the file again")
    return value


def _quant_method(config: dict[str, Any]) -> str:
    for holder in (config, config.get("text_config")):
        quant = holder.get("quantization_config") if isinstance(holder, dict) else None
        if isinstance(quant, dict):
            return str(quant.get("quant_method", "unnamed method")).lower()
    return ""


def _shards(path: Path, index: dict[str, Any] | None) -> tuple[str, ...]:
    if index is not None:
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise W12Error("has no weight_map", where=path / INDEX, fix="fetch the index again")
        names: Iterable[str] = {str(v) for v in weight_map.values()}
        for name in names:
            if Path(name).name != name:
                raise W12Error(f"names a shard outside the folder: {name!r}", where=path / INDEX, fix="fetch it again")
            if not (path / name).exists():
                raise W12Error(f"shard {name} is missing", where=path / INDEX, fix="fetch the missing shard")
    else:
        names = [p.name for p in path.glob("*.safetensors") if not p.name.startswith("consolidated")]
        if not names:
            raise W12Error("holds no *.safetensors file", where=path, fix="convert the model to safetensors first")
    return tuple(sorted(names))


def _check_unique(path: Path, tensors: dict[str, dict[str, Entry]]) -> None:
    seen: dict[str, str] = {}
    for shard, entries in tensors.items():
        for name in entries:
            if name in seen:
                raise W12Error(
                    f"tensor {name!r} stands in {seen[name]} and in {shard}",
                    where=path,
                    fix="keep it in one shard, or remove the file that does not belong to the model",
                )
            seen[name] = shard


def _check_index(path: Path, weight_map: dict[str, str], tensors: dict[str, dict[str, Entry]]) -> None:
    for name, shard in weight_map.items():
        if name not in tensors[shard]:
            raise W12Error(f"tensor {name!r} is not in {shard}", where=path / INDEX, fix="fetch index and shards again")
