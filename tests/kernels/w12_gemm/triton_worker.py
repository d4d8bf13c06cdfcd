"""Runs the Triton GEMM on chosen matrices and prints one line a check; Triton decides at import to interpret or not."""

from __future__ import annotations

import sys

import numpy as np
import torch

from specpilot_sglang.kernels.w12_gemm.ref import w12_gemm_ref
from specpilot_sglang.kernels.w12_gemm.triton_gemm import pack_blocks, w12_gemm_triton
from specpilot_sglang.w12.codec_torch import encode
from specpilot_sglang.w12.windows import Windows

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


def weights(n: int, k: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n + k)
    weight = (torch.randn(n, k, generator=generator) * 0.02).bfloat16()
    weight[0, 0], weight[0, -1], weight[-1, 0], weight[n // 2] = 40.0, -1e4, 1e-30, 3e5
    return weight.to(DEVICE)


def report(name: str, ok: bool) -> None:
    print(name, "same" if ok else "DIFFERENT")


for n, k in ((64, 64), (65, 130), (1, 1), (24, 200), (100, 33)):
    for zeros in (False, True):
        weight = weights(n, k)
        if zeros:
            weight[:, ::3], weight[:, 1::5] = 0.0, -0.0
        encoded = encode(weight, Windows(np.full(n, 110, np.uint8), zeros))
        packed = pack_blocks(encoded)
        x = torch.randint(-4, 5, (18, k), device=DEVICE).to(DTYPE)
        integers = encode((torch.arange(n * k, device=DEVICE).view(n, k) % 17 - 8).bfloat16(), zero_code=zeros)
        got, want = w12_gemm_triton(x, pack_blocks(integers)), w12_gemm_ref(x, integers, accumulate=torch.float64)
        report(f"integers {n}x{k} {zeros}", torch.equal(got, want))
        close = w12_gemm_ref(x.double(), encoded, accumulate=torch.float64)
        whole = w12_gemm_triton(x, packed)
        error, size = (whole.double() - close).norm(), close.norm()
        report(f"values {n}x{k} {zeros}", bool(error <= (3e-3 if DEVICE == "cuda" else 1e-6) * size))
        alone = torch.cat([w12_gemm_triton(x[i : i + 1], packed) for i in range(18)])
        report(f"tokens alone {n}x{k} {zeros}", torch.equal(alone, whole))
