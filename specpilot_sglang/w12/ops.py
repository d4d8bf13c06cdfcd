"""The packed linear layer as one torch operator, so that torch.compile and CUDA graphs see a call and not its inside.

`specpilot::w12_linear(Tensor x, int weight, int rows) -> Tensor`: x [..., K] bfloat16, `weight` the handle of a
`ResidentWeight`, `rows` its N; returns [..., N]. Its fake form knows shapes only.
"""

from __future__ import annotations

import torch

from specpilot_sglang.plugin import counters
from specpilot_sglang.w12.resident import RESIDENT

#: Host-side calls of the kernel path: eager ones, and one for each layer while a CUDA graph is captured.
CALLS = "w12_linear_calls"

_library = torch.library.Library("specpilot", "FRAGMENT")
_library.define("w12_linear(Tensor x, int weight, int rows) -> Tensor")


def w12_linear(x: torch.Tensor, weight: int, rows: int) -> torch.Tensor:
    """Return `x @ weight.T` of a packed weight, through the operator."""
    result: torch.Tensor = torch.ops.specpilot.w12_linear(x, weight, rows)
    return result


def _launch(x: torch.Tensor, weight: int, rows: int) -> torch.Tensor:
    counters.hit(CALLS)
    return RESIDENT[weight].linear(_readable(x))


def _shape(x: torch.Tensor, weight: int, rows: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], rows))


def _readable(x: torch.Tensor) -> torch.Tensor:
    """Copy what the copy engine cannot address: rows must start at multiples of 16 bytes."""
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    rows_aligned = flat.shape[0] < 2 or flat.stride(0) % 8 == 0
    if flat.stride(1) == 1 and rows_aligned and flat.data_ptr() % 16 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


for _device in ("CUDA", "CPU"):
    _library.impl("w12_linear", _launch, _device)
torch.library.register_fake("specpilot::w12_linear", _shape, lib=_library)
