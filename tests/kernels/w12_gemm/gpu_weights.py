"""Weights on a GPU for the kernels' tests: normal ones, and ones with escapes in every kind of place."""

from __future__ import annotations

import torch


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.view(torch.int16)


def gaussian(n: int, k: int, scale: float = 0.02, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return (torch.randn(n, k, device="cuda", generator=generator) * scale).bfloat16()


def with_escapes(n: int, k: int) -> torch.Tensor:
    weight = gaussian(n, k)
    weight[0, 0], weight[0, -1], weight[-1, 0], weight[-1, -1] = 40.0, -1e4, 1e-30, 3e5
    weight[n // 2, ::5], weight[:, k // 2], weight[n // 3] = 1e-9, 7.0, 1e-25
    return weight
