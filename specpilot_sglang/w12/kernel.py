"""What W12 needs of a GEMM kernel, and the fused Hopper kernel in that form."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from specpilot_sglang.w12 import codec_torch
from specpilot_sglang.w12.codec_torch import W12Tensor


class KernelBackend(Protocol):
    """Multiplies by packed weights. `packed` is whatever `pack` returned."""

    name: str

    def refuses(self, n: int, k: int, device: torch.device) -> str:
        """Return why a weight [n, k] is better left BF16 on this device, empty when it is not."""

    def declines(self, weight: W12Tensor) -> str:
        """Return why an encoded weight is better left BF16, empty when it is not."""

    def pack(self, weight: W12Tensor) -> Any:
        """Return the weight in the kernel's own order, complete in memory, the argument no longer needed."""

    def prepare(self, packed: Any) -> None:
        """Compile, load and allocate everything that `linear` needs, so that it can run inside a graph capture."""

    def linear(self, x: torch.Tensor, packed: Any) -> torch.Tensor:
        """Return `x @ weight.T` for x [..., K] bfloat16."""

    def decode(self, packed: Any) -> torch.Tensor:
        """Return the exact weight [N, K] bfloat16 in new memory."""

    def nbytes(self, packed: Any) -> int:
        """Return the memory it holds."""

    def refresh(self, packed: Any, weight: W12Tensor) -> None:
        """Replace the values in the same storage; `W12Error` when they do not fit."""

    def report(self) -> dict[str, Any]:
        """Return what this process compiled and loaded, of JSON values only."""


class FusedKernel:
    """`kernels.w12_gemm`: decode and multiply in one pass; small weights or most tokens: decode, then cuBLAS."""

    name = "w12_gemm"

    def refuses(self, n: int, k: int, device: torch.device) -> str:
        """See `KernelBackend`."""
        from specpilot_sglang.kernels.w12_gemm import dispatch, linear

        why = linear.unsupported(n, k, device)
        if why:
            return why
        gpu = torch.cuda.get_device_name(device)
        return "" if dispatch.wins(n, k, gpu) else f"BF16 is faster for [{n}, {k}] on {gpu}"

    def declines(self, weight: W12Tensor) -> str:
        """See `KernelBackend`."""
        from specpilot_sglang.kernels.w12_gemm import dispatch

        share = dispatch.densest(weight)
        return f"{share:.2%} escapes in sixteen rows" if share > dispatch.MOST_ESCAPES else ""

    def pack(self, weight: W12Tensor) -> Any:
        """See `KernelBackend`."""
        from specpilot_sglang.kernels.w12_gemm import linear

        return linear.pack_layer(weight)

    def prepare(self, packed: Any) -> None:
        """See `KernelBackend`."""
        from specpilot_sglang.kernels.w12_gemm import linear

        linear.prepare_layer(packed)

    def linear(self, x: torch.Tensor, packed: Any) -> torch.Tensor:
        """See `KernelBackend`."""
        from specpilot_sglang.kernels.w12_gemm import linear

        return linear.w12_linear(x, packed)

    def decode(self, packed: Any) -> torch.Tensor:
        """See `KernelBackend`."""
        from specpilot_sglang.kernels.w12_gemm import linear

        return linear.decode_weight(packed)

    def nbytes(self, packed: Any) -> int:
        """See `KernelBackend`."""
        return int(packed.nbytes)

    def refresh(self, packed: Any, weight: W12Tensor) -> None:
        """See `KernelBackend`."""
        from specpilot_sglang.kernels.w12_gemm import linear

        linear.refresh(packed, weight)

    def report(self) -> dict[str, Any]:
        """See `KernelBackend`."""
        from specpilot_sglang.kernels.w12_gemm import linear

        return linear.loaded()


def encode(weight: torch.Tensor, zero_code: bool | None = None) -> W12Tensor:
    """Encode a BF16 matrix on its device by the fastest way there is; the result is the same either way."""
    if weight.is_cuda:
        from specpilot_sglang.kernels.w12_encode import encode as on_gpu

        if on_gpu.takes(weight):
            return on_gpu.encode(weight, zero_code)
    return codec_torch.encode(weight, zero_code=zero_code)
