"""Calls every kind of W12 kernel on small weights, for compute-sanitizer to watch: `sanitize_worker.py few|many K`."""

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


def weights(k: int, tiling: Tiling) -> list[PackedWeight]:
    torch.manual_seed(0)
    weight = (torch.randn(ROWS, k, device="cuda") * 0.02).bfloat16()
    weight[5, ::7], weight[:, 3] = 1e3, 1e-30
    zeros = weight.clone()
    zeros[:, ::3] = 0
    return [pack(encode(weight), tiling), pack(encode(zeros), tiling), pack_bf16(weight, tiling)]


def few(k: int) -> int:
    calls = 0
    for tiling in (Tiling(16), Tiling(9), Tiling(7, 2, 128), Tiling(4, 4)):
        for packed in weights(k, tiling):
            for tokens in (1, 16, 32, 64):
                x = torch.randn(tokens, k, device="cuda").bfloat16()
                for nested in (False, True) if packed.decoder == Decoder.W12 else (False,):
                    for _ in range(2):  # the second one overlaps the first
                        w12_gemm(x, packed, nested=nested)
                        calls += 1
    return calls


def many(k: int) -> int:
    calls = 0
    for packed in weights(k, Tiling(7, 2, 128)):
        for tokens in (70, 300):
            x = torch.randn(tokens, k, device="cuda").bfloat16()
            for shape in (Shape(128), Shape(256)):
                w12_wide(x, packed, x.new_empty((tokens, ROWS)), shape=shape)
                calls += 1
        if packed.decoder != Decoder.BF16:
            decode_weight(packed)
            decode_weight(packed, nested=True)
    return calls


if __name__ == "__main__":
    done = {"few": few, "many": many}[sys.argv[1]](int(sys.argv[2]))
    torch.cuda.synchronize()
    print("calls", done)
