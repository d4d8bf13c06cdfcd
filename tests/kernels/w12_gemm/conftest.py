"""The kernel's decoder compiled for the host, and matrices that stress it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specpilot_sglang.kernels.w12_gemm.pack import PackedWeight
from specpilot_sglang.kernels.w12_gemm.tiling import Decoder

HERE = Path(__file__).parent
SOURCES = Path(__file__).parents[3] / "kernels" / "w12_gemm"

Decode = Callable[[PackedWeight, Decoder], torch.Tensor]


@pytest.fixture(scope="session")
def host_decode(tmp_path_factory: pytest.TempPathFactory) -> Decode:
    """Return a function from packed weight and decoder to the [N, K] int16 bits the kernel's registers hold."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no host C++ compiler")
    library = tmp_path_factory.mktemp("host") / "decode.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-std=c++17", f"-I{SOURCES}", str(HERE / "host_decode.cpp")]
    subprocess.run([*command, "-o", str(library)], check=True)
    decode_units = ctypes.CDLL(str(library)).decode_units

    def decode(weight: PackedWeight, decoder: Decoder) -> torch.Tensor:
        tiling = weight.tiling
        tiles, chunks = tiling.tiles(weight.n), tiling.chunks(weight.k)
        shape = (tiles, chunks, tiling.rows, tiling.wk)
        units = tiles * chunks * tiling.rows * tiling.wk
        base = weight.base.view(tiles, 1, tiling.rows, 1, 16).expand(*shape, 16).contiguous()
        nested = decoder == Decoder.NESTED8
        words, lists = (weight.escape8, weight.escapes8) if nested else (weight.escape, weight.escapes)
        words = words.view(-1, tiling.words)[:, : tiling.rows * tiling.wk].contiguous()
        out = torch.full((units, 16, 64), -1, dtype=torch.int16)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (weight.a, weight.b, words, lists, base, out)]
        decode_units(int(decoder), ctypes.c_long(units), *pointers)
        full = out.view(*shape, 16, 64).permute(0, 2, 4, 1, 3, 5).reshape(-1, weight.k)
        return full[: weight.n]

    return decode
