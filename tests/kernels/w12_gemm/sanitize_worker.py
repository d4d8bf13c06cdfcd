"""Calls every kind of W12 kernel on small weights, for compute-sanitizer to watch.

`sanitize_worker.py few|many K TILING WEIGHT`: `TILINGS` and `weights` by index, so that the calls can be shared out.
"""

from __future__ import annotations

import sys

import torch

from specpilot_sglang.kernels.w12_gemm.launch import w12_gemm
from specpilot_sglang.kernels.w12_gemm.linear import decode_weight
from specpilot_sglang.kernels.w12_gemm.pack import PackedWeight, pack, pack_bf16
from specpilot_sglang.kernels.w12_gemm.tiling import Decoder, Tiling
from specpilot_sglang.kernels.w12_gemm.wide import Shape, w12_wide
from specpilot_sglang.w12.codec_torch import encode

ROWS = 400
TILINGS = (
    Tiling(16),
    Tiling(9),
    Tiling(17, 1, 128),
    Tiling(7, 2, 128),
    Tiling(4, 4),
    Tiling(1, 4, 60),
    Tiling(5, 2, 128),
)


def weight_of(k: int, tiling: Tiling, which: int) -> PackedWeight:
    """Return a weight with escapes (0), with zeros too (1), or in plain BF16 (2)."""
    torch.manual_seed(0)
    weight = (torch.randn(ROWS, k, device="cuda") * 0.02).bfloat16()
    weight[5, ::7], weight[:, 3] = 1e3, 1e-30
    if which == 1:
        weight[:, ::3] = 0
    return pack_bf16(weight, tiling) if which == 2 else pack(encode(weight), tiling)


def few(k: int, packed: PackedWeight) -> int:
    calls = 0
    for tokens in (1, 16, 32, 64):
        x = torch.randn(tokens, k, device="cuda").bfloat16()
        for nested in (False, True) if packed.decoder == Decoder.W12 else (False,):
            for _ in range(2):  # the second one overlaps the first
                w12_gemm(x, packed, nested=nested)
                calls += 1
    return calls


def many(k: int, packed: PackedWeight) -> int:
    calls = 0
    for tokens in (70, 300):
        x = torch.randn(tokens, k, device="cuda").bfloat16()
        for shape in (Shape(128), Shape(256)):
            for nested in (False, True) if packed.decoder == Decoder.W12 else (False,):
                w12_wide(x, packed, x.new_empty((tokens, ROWS)), nested=nested, shape=shape)
                calls += 1
    if packed.decoder != Decoder.BF16:
        decode_weight(packed)
        decode_weight(packed, nested=True)
    return calls


if __name__ == "__main__":
    columns, tiling, which = map(int, sys.argv[2:5])
    weight = weight_of(columns, TILINGS[tiling], which)
    done = {"few": few, "many": many}[sys.argv[1]](columns, weight)
    torch.cuda.synchronize()
    print("calls", done)
