"""Layers of SGLang with a packed weight, for tests with an emulated kernel."""

from __future__ import annotations

import torch
from tiny_models import plant_escapes
from w12_data import gaussian

N, K = 64, 96


def replicated(prefix: str = "proj", n: int = N, k: int = K, dtype: torch.dtype = torch.bfloat16, bias: bool = False):
    from sglang.srt.layers.linear import ReplicatedLinear

    from specpilot_sglang.w12.method import W12Config

    return ReplicatedLinear(k, n, bias=bias, params_dtype=dtype, quant_config=W12Config(), prefix=prefix)


def finish(layer: torch.nn.Module) -> torch.nn.Module:
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def loaded(weight: torch.Tensor, **kwargs) -> torch.nn.Module:
    layer = replicated(n=weight.shape[0], k=weight.shape[1], **kwargs)
    layer.weight.weight_loader(layer.weight, weight)
    return finish(layer)


def planted(n: int, k: int, seed: int) -> torch.Tensor:
    weight = gaussian(n, k, seed)
    plant_escapes(weight)
    return weight


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))
