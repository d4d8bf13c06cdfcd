"""Repacking and the kernel's own decoder, on the CPU: the registers hold exactly the weights that were encoded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specpilot_sglang.errors import W12Error
from specpilot_sglang.kernels.w12_gemm.pack import pack, pack_bf16
from specpilot_sglang.kernels.w12_gemm.tiling import Decoder, Tiling
from specpilot_sglang.w12 import codec_torch
from specpilot_sglang.w12.windows import Windows

TILINGS = [Tiling(8), Tiling(4, 2), Tiling(7, 2), Tiling(1, 4), Tiling(17)]


def gaussian(n: int, k: int, seed: int = 0) -> torch.Tensor:
    return (torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * 0.02).bfloat16()


def from_bits(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits.astype(np.uint16).view(np.int16)).view(torch.bfloat16)


def check(weight: codec_torch.W12Tensor, tiling: Tiling, host_decode) -> None:
    packed = pack(weight, tiling)
    assert torch.equal(host_decode(packed, packed.decoder), codec_torch.decode(weight).view(torch.int16))
    view = codec_torch.nested8_decode(weight).view(torch.int16)
    assert torch.equal(host_decode(packed, Decoder.NESTED8), view)


@pytest.mark.parametrize("tiling", TILINGS)
def test_every_tiling_decodes_to_the_codecs_bits(tiling: Tiling, host_decode) -> None:
    check(codec_torch.encode(gaussian(200, 768)), tiling, host_decode)


@pytest.mark.parametrize("n", [1, 8, 24, 32, 48, 65])
def test_rows_that_do_not_fill_a_tile(n: int, host_decode) -> None:
    check(codec_torch.encode(gaussian(n, 256, n)), Tiling(), host_decode)


def test_escapes_at_every_place_of_a_unit(host_decode) -> None:
    weight = gaussian(16 * 1024, 64)
    place = torch.arange(1024)
    weight[16 * place + place // 64, place % 64] = 1e30
    check(codec_torch.encode(weight), Tiling(), host_decode)


def test_whole_rows_first_and_last_columns_of_escapes(host_decode) -> None:
    weight = gaussian(130, 256)
    weight[5], weight[:, 0], weight[:, -1] = 1e-30, -1e20, float("inf")
    weight[129, 100], weight[128, 3:7] = float("nan"), float("-inf")
    encoded = codec_torch.encode(weight, Windows(np.full(130, 108, np.uint8), False))
    assert int(encoded.row_ptr.diff().max()) == 256
    check(encoded, Tiling(), host_decode)
    check(encoded, Tiling(5, 4), host_decode)


@pytest.mark.parametrize("zero_code", [False, True])
def test_zeros_of_both_signs(zero_code: bool, host_decode) -> None:
    weight = gaussian(64, 128)
    weight[:, ::3], weight[:, 1::9] = 0.0, -0.0
    encoded = codec_torch.encode(weight, Windows(np.full(64, 107, np.uint8), zero_code))
    assert pack(encoded, Tiling()).decoder == (Decoder.W12_ZERO if zero_code else Decoder.W12)
    check(encoded, Tiling(), host_decode)


@pytest.mark.parametrize("base", [0, 1, 96, 112, 127, 239, 240])
@pytest.mark.parametrize("zero_code", [False, True])
def test_all_bf16_patterns_in_extreme_windows(base: int, zero_code: bool, host_decode) -> None:
    bits = np.random.default_rng(base).permutation(1 << 16).reshape(512, 128)
    encoded = codec_torch.encode(from_bits(bits), Windows(np.full(512, base, np.uint8), zero_code))
    check(encoded, Tiling(), host_decode)


def test_all_codes_in_every_window(host_decode) -> None:
    code = np.arange(4096, dtype=np.int64).reshape(64, 64)
    rows = [((code & 0x800) << 4) + ((code & 0x7FF) + (base << 7)) for base in range(241)]
    base = np.repeat(np.arange(241, dtype=np.uint8), 64)
    encoded = codec_torch.encode(from_bits(np.concatenate(rows)), Windows(base, False))
    assert encoded.col.numel() == 0
    check(encoded, Tiling(), host_decode)


def test_bf16_fragments_hold_the_weight() -> None:
    weight, tiling = gaussian(48, 256), Tiling(2, 2)
    packed = pack_bf16(weight, tiling)
    # [tile, chunk, unit row, unit column, half, step, g, t, pair, row / 8, lane half], written out from the PTX manual.
    parts = packed.a.view(torch.int16).view(2, 2, 2, 2, 2, 2, 8, 4, 2, 2, 2)
    row, column = 37, 200
    at = parts[1, 1, 0, 1, 0, 0, 5, 0, 1, 0, 0]
    assert at == weight.view(torch.int16)[row, column]
    assert sorted(parts[1].flatten().tolist()) == sorted(
        [*weight.view(torch.int16)[32:].flatten().tolist(), *[0] * 4096]
    )


def test_k_that_is_no_multiple_of_a_chunk_is_refused() -> None:
    with pytest.raises(W12Error, match="multiple of 128, not 192"):
        pack(codec_torch.encode(gaussian(16, 192)), Tiling(wk=2))
