"""Packed linear layers compute what torch computes, and follow the weight they were made from."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from specpilot_sglang.platform_cpu import packed_linear


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 33])
def test_equals_torch_to_rounding(dtype, rows):
    torch.manual_seed(0)
    weight, x = torch.randn(96, 64).to(dtype), torch.randn(rows, 64).to(dtype)
    bias = torch.randn(96).to(dtype)
    expected = F.linear(x.double(), weight.double(), bias.double())
    got = packed_linear.linear(x, weight, bias).double()
    assert got.shape == expected.shape
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    assert ((got - expected).abs() / (1 + expected.abs())).max() < tolerance


def test_repeats_are_bit_equal():
    torch.manual_seed(1)
    weight, x = torch.randn(96, 64), torch.randn(8, 64)
    whole = packed_linear.linear(x, weight)
    assert torch.equal(packed_linear.linear(x.clone(), weight), whole)


def test_an_update_through_data_is_seen_after_forget():
    """SGLang's loaders write through `param.data`, which does not touch the version counter."""
    weight = torch.nn.Parameter(torch.randn(32, 16).bfloat16(), requires_grad=False)
    x = torch.randn(4, 16).bfloat16()
    before = packed_linear.linear(x, weight)
    weight.data.copy_(2 * weight.data)
    packed_linear.forget()
    assert torch.allclose(packed_linear.linear(x, weight).float(), 2 * before.float(), rtol=2e-2)


def test_every_weight_update_forgets_even_a_failed_one():
    from contextlib import contextmanager

    seen = []

    @contextmanager
    def stock(updater, source):
        seen.append(source)
        yield

    observe = packed_linear.renew_after_update(stock)
    before = packed_linear._generation
    with observe(None, "disk"):
        pass
    with pytest.raises(RuntimeError), observe(None, "tensor"):
        raise RuntimeError
    assert seen == ["disk", "tensor"]
    assert packed_linear._generation == before + 2
