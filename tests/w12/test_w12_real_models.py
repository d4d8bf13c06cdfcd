"""Bits per weight of real models, every stored byte counted but the file header."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from specpilot_sglang.assets import fetch
from specpilot_sglang.w12.pack import PackOptions, pack_checkpoint
from specpilot_sglang.w12.rawfile import SafetensorsReader
from specpilot_sglang.w12.rawwriter import SafetensorsWriter
from specpilot_sglang.w12.report import totals
from specpilot_sglang.w12.unpack import unpack_checkpoint


@pytest.fixture(scope="session")
def minilm_bf16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2 with its float32 weights rounded to the nearest BF16, ties to even."""
    source, folder = fetch("all-minilm"), tmp_path_factory.mktemp("minilm")
    shutil.copy(source / "config.json", folder)
    with (
        SafetensorsReader(source / "model.safetensors") as reader,
        SafetensorsWriter(folder / "model.safetensors", 1 << 18) as writer,
    ):
        for name, entry in reader.entries.items():
            if entry.dtype == "F32":
                bits = reader.read(name).view("<u4").astype(np.uint64)
                rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
                writer.append(name, "BF16", entry.shape, rounded)
            else:
                writer.append(name, entry.dtype, entry.shape, reader.chunks(name))
        writer.finish({"format": "pt"})
    return folder


def check(source: Path, folder: Path, bits: float) -> None:
    summary = totals(pack_checkpoint(source, folder / "packed", PackOptions()))
    packed = folder / "packed" / "model.safetensors"
    with SafetensorsReader(packed) as reader:
        parts = sum(e.nbytes for n, e in reader.entries.items() if ".w12_" in n)
    assert parts == summary.packed_bytes
    assert 8 * parts / summary.packed_weights <= bits
    unpack_checkpoint(folder / "packed", folder / "again")
    assert (folder / "again" / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    # Kept tensors are vectors and a table of two rows, so the whole file shrinks by a quarter too.
    assert packed.stat().st_size < 0.76 * (source / "model.safetensors").stat().st_size


def test_native_weights_take_at_most_12_02_bits(minilm_bf16: Path, tmp_path: Path) -> None:
    check(minilm_bf16, tmp_path, 12.02)


def test_dequantised_weights_with_many_zeros_take_at_most_12_10_bits(smollm2: Path, tmp_path: Path) -> None:
    check(smollm2, tmp_path, 12.10)
