"""A kernel backend in torch: what the fused kernel promises, on any device, with storage that never moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12 import codec_torch
from specpilot_sglang.w12.codec_torch import W12Tensor

ROOM = 64  # escapes that fit beyond the first weight's


@dataclass
class Planes:
    tensor: W12Tensor
    col: torch.Tensor
    val: torch.Tensor

    def pointers(self) -> tuple[int, ...]:
        t = self.tensor
        return tuple(part.data_ptr() for part in (t.a, t.b, t.base, t.row_ptr, self.col, self.val))

    def current(self) -> W12Tensor:
        t, used = self.tensor, int(self.tensor.row_ptr[-1])
        return W12Tensor(t.a, t.b, t.base, t.row_ptr, self.col[:used], self.val[:used], t.k, t.zero_code, t.zeros)


@dataclass
class TorchKernel:
    """`refused` maps (n, k) to the reason; `calls` notes what ran, by name."""

    name: str = "emulated"
    refused: dict[tuple[int, int], str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    declined: str = ""

    def refuses(self, n: int, k: int, device: torch.device) -> str:
        return self.refused.get((n, k), "")

    def declines(self, weight: W12Tensor) -> str:
        return self.declined

    def pack(self, weight: W12Tensor) -> Planes:
        self.calls.append("pack")
        room = weight.col.numel() + ROOM
        col, val = weight.col.new_zeros(room), weight.val.new_zeros(room)
        col[: weight.col.numel()], val[: weight.val.numel()] = weight.col, weight.val
        return Planes(weight, col, val)

    def prepare(self, packed: Planes) -> None:
        self.calls.append("prepare")

    def linear(self, x: torch.Tensor, packed: Planes) -> torch.Tensor:
        self.calls.append("linear")
        rows = x.reshape(-1, x.shape[-1])
        weight = self.decode(packed).float()
        y = [(weight * row.float()).sum(1) for row in rows]  # a row alone, whatever stands beside it
        result = torch.stack(y) if y else rows.new_zeros((0, weight.shape[0])).float()
        return result.to(torch.bfloat16).view(*x.shape[:-1], weight.shape[0])

    def decode(self, packed: Planes) -> torch.Tensor:
        return codec_torch.decode(packed.current())

    def nbytes(self, packed: Planes) -> int:
        t = packed.tensor
        parts = (t.a, t.b, t.base, t.row_ptr, packed.col, packed.val)
        return sum(part.numel() * part.element_size() for part in parts)

    def refresh(self, packed: Planes, weight: W12Tensor) -> None:
        self.calls.append("refresh")
        if weight.col.numel() > packed.col.numel():
            raise W12Error(f"{weight.col.numel()} escapes, room for {packed.col.numel()}")
        old = packed.tensor
        assert weight.zero_code == old.zero_code
        for name in ("a", "b", "base", "row_ptr"):
            getattr(old, name).copy_(getattr(weight, name))
        packed.col[: weight.col.numel()], packed.val[: weight.val.numel()] = weight.col, weight.val

    def report(self) -> dict[str, Any]:
        return {"calls": len(self.calls)}
