"""A linear layer on a packed weight for any number of tokens: the fused kernel, or decode and the library's GEMM."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as functional

from specpilot_sglang.kernels.w12_gemm import driver
from specpilot_sglang.kernels.w12_gemm.build import DECODE, decode_options
from specpilot_sglang.kernels.w12_gemm.launch import w12_gemm
from specpilot_sglang.kernels.w12_gemm.pack import PackedWeight
from specpilot_sglang.kernels.w12_gemm.tiling import MAX_TOKENS, Decoder

#: Warps of a CTA of the decode kernel; one unit each.
_WARPS = 8


class _Params(ctypes.Structure):
    """`DecodeParams` of w12_decode.cu, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "escape", "list", "base", "out")),
        ("units", ctypes.c_longlong),
        *((name, ctypes.c_int) for name in ("rows", "columns", "chunks", "row_units", "ku")),
    )


_FUNCTIONS: dict[tuple[torch.device, Decoder], driver.Function] = {}


def w12_linear(x: torch.Tensor, weight: PackedWeight, *, nested: bool = False) -> torch.Tensor:
    """Return `x @ weight.T` for x [..., K]; up to 64 rows by the fused kernel, more by decode and `F.linear`.

    The two paths round sums differently, as the library's own kernels do among themselves.
    """
    flat = x.reshape(-1, x.shape[-1])
    if flat.shape[0] > MAX_TOKENS:
        y = functional.linear(flat, decode_weight(weight, nested=nested))
    else:
        y = w12_gemm(flat, weight, nested=nested)
    return y.view(*x.shape[:-1], weight.n)


def decode_weight(weight: PackedWeight, *, nested: bool = False) -> torch.Tensor:
    """Return the [N, K] bfloat16 weight (or its 8-bit view), bit-exact, in new memory on the weight's device.

    Raises:
        ValueError: the weight is packed BF16, which has no decode kernel.
        KernelBuildError: not loaded yet inside a CUDA graph capture, or CUDA reports an error.
    """
    if weight.decoder == Decoder.BF16:
        raise ValueError("a packed BF16 weight is a test's reference; keep the original to have it row-major")
    decoder = Decoder.NESTED8 if nested else weight.decoder
    device, tiling = weight.a.device, weight.tiling
    key = (device, decoder)
    if key not in _FUNCTIONS:
        _FUNCTIONS[key] = driver.load(DECODE, "w12_decode", decode_options(decoder), device)
    out = torch.empty((weight.n, weight.k), dtype=torch.bfloat16, device=device)
    words, lists = (weight.escape8, weight.escapes8) if nested else (weight.escape, weight.escapes)
    pointers = [t.data_ptr() for t in (weight.a, weight.b, words, lists, weight.base, out)]
    units, chunks = words.numel(), tiling.chunks(weight.k)
    params = _Params(*pointers, units, weight.n, weight.k, chunks, tiling.row_units, tiling.ku)
    if units:
        driver.launch(_FUNCTIONS[key], -(-units // _WARPS), 32 * _WARPS, [ctypes.addressof(params)], device)
    return out
