"""Torch oracle of the W12 GEMM: what a kernel must compute, from the encoded planes alone.

Shapes: activations [M, K], encoded weight [N, K], result [M, N], as `torch.nn.functional.linear`.
"""

from __future__ import annotations

import torch

from specpilot_sglang.w12.codec_torch import W12Tensor, decode, nested8_decode


def w12_gemm_ref(x: torch.Tensor, weight: W12Tensor, *, accumulate: torch.dtype = torch.float32) -> torch.Tensor:
    """Return `x @ weight.T`, the weight decoded to its exact BF16 bits.

    Args:
        x: [M, K] bfloat16 or float32, on the weight's device.
        weight: encoded [N, K].
        accumulate: dtype of products and sums; float64 makes the rounding of the sum negligible.

    Returns:
        [M, N] in the dtype of `x`.

    Raises:
        ValueError: K of `x` and of the weight differ.
    """
    return _linear(x, decode(weight), accumulate)


def w12_gemm_nested8_ref(
    x: torch.Tensor, weight: W12Tensor, *, accumulate: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return `x @ view.T` with the 8-bit view of the weight (plane A, and escapes above each row's window).

    Arguments and result as `w12_gemm_ref`; the view's relative RMS error is 2.7 percent on Gaussian rows.
    """
    return _linear(x, nested8_decode(weight), accumulate)


def _linear(x: torch.Tensor, weight: torch.Tensor, accumulate: torch.dtype) -> torch.Tensor:
    if x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has shape {tuple(x.shape)}, the weight has K = {weight.shape[1]}")
    return (x.to(accumulate) @ weight.to(accumulate).T).to(x.dtype)
