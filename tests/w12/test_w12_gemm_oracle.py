"""The torch oracle of the W12 GEMM, and the nested 8-bit view."""

import numpy as np
import pytest
import torch
from w12_data import bf16, bits_of, gaussian

from specpilot_sglang.kernels.w12_gemm.ref import w12_gemm_nested8_ref, w12_gemm_ref
from specpilot_sglang.w12 import codec, codec_torch


def test_gemm_equals_the_gemm_of_the_original_weight() -> None:
    weight, x = gaussian(96, 160), gaussian(5, 160, 1, 1.0)
    weight[3, 7], weight[4, 0] = 1e30, 0.0
    got = w12_gemm_ref(x, codec_torch.encode(weight))
    expected = (x.float() @ weight.float().T).bfloat16()
    assert torch.equal(got.view(torch.int16), expected.view(torch.int16))


def test_integer_gemm_is_exact() -> None:
    weight = torch.randint(-8, 9, (64, 128), generator=torch.Generator().manual_seed(0)).bfloat16()
    x = torch.randint(-4, 5, (3, 128), generator=torch.Generator().manual_seed(1)).float()
    assert torch.equal(w12_gemm_ref(x, codec_torch.encode(weight)), x @ weight.float().T)


def test_shape_mismatch_names_k() -> None:
    with pytest.raises(ValueError, match="K = 160"):
        w12_gemm_ref(torch.zeros(1, 16), codec_torch.encode(gaussian(4, 160)))


def test_nested8_error_is_that_of_a_rounded_three_bit_mantissa() -> None:
    weight = gaussian(256, 2048)
    encoded = codec_torch.encode(weight)
    view, exact = codec_torch.nested8_decode(encoded).double(), weight.double()
    error = float(((view - exact).pow(2).mean() / exact.pow(2).mean()).sqrt())
    gain = float((view * exact).sum() / exact.pow(2).sum())
    assert 0.025 < error < 0.028
    assert abs(gain - 1) < 0.006


def test_nested8_applies_outliers_and_ignores_what_lies_below() -> None:
    weight = gaussian(2, 512)
    weight[0, 5], weight[0, 6], weight[1, 9] = 1e30, float("-inf"), 1e-30
    encoded = codec_torch.encode(weight)
    view = codec_torch.nested8_decode(encoded)
    assert view[0, 5] == weight[0, 5]
    assert view[0, 6] == weight[0, 6]
    assert 0 < abs(float(view[1, 9])) < 1e-4
    assert np.array_equal(bits_of(view), codec.nested8_decode(encoded.to_numpy()))


def test_nested8_needs_plane_a_and_the_escapes_only() -> None:
    weight = gaussian(16, 64)
    encoded = codec.encode(bits_of(weight))
    without_b = codec.W12Matrix(**{**encoded.__dict__, "b": np.full_like(encoded.b, 0xFF)})
    assert np.array_equal(codec.nested8_decode(without_b), codec.nested8_decode(encoded))


def test_nested8_keeps_infinities_of_the_highest_window() -> None:
    bits = np.full((1, 32), 0x7F80, np.uint16)
    view = codec_torch.nested8_decode(codec_torch.encode(bf16(bits)))
    assert torch.isinf(view).all()


def test_nested8_gemm_is_close_and_not_equal() -> None:
    weight, x = gaussian(64, 1024), gaussian(4, 1024, 1, 1.0).float()
    exact, view = (f(x, codec_torch.encode(weight)) for f in (w12_gemm_ref, w12_gemm_nested8_ref))
    relative = float((exact - view).norm() / exact.norm())
    assert 0.01 < relative < 0.04
