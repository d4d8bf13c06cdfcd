"""All 65,536 BF16 bit patterns through the codec, compared as bits (values would hide NaN and signed zeros)."""

import numpy as np
import pytest
import torch
from w12_data import ALL_PATTERNS, bf16, bits_of

from specpilot_sglang.w12 import codec, codec_torch
from specpilot_sglang.w12.spec import MAX_BASE, W12Matrix
from specpilot_sglang.w12.windows import Windows

# One row a base: every pattern meets every window.
EVERY_BASE = np.repeat(ALL_PATTERNS[None], MAX_BASE + 1, axis=0)
BASES = np.arange(MAX_BASE + 1, dtype=np.uint8)


def window(zero_code: bool) -> Windows:
    return Windows(BASES, zero_code)


@pytest.mark.parametrize("zero_code", [False, True])
def test_every_pattern_in_every_window_survives_numpy(zero_code: bool) -> None:
    encoded = codec.encode(EVERY_BASE, window(zero_code))
    assert np.array_equal(codec.decode(encoded), EVERY_BASE)
    # 4,096 codes a window; with the zero code, the two codes for +-2^(base-127) pay for the two zeros.
    assert (np.diff(encoded.row_ptr) == 65_536 - 4_096).all()


@pytest.mark.parametrize("zero_code", [False, True])
def test_every_pattern_in_every_window_survives_torch_with_the_same_planes(zero_code: bool) -> None:
    encoded, expected = (
        codec_torch.encode(bf16(EVERY_BASE), window(zero_code)),
        codec.encode(EVERY_BASE, window(zero_code)),
    )
    assert_same(encoded.to_numpy(), expected)
    assert np.array_equal(bits_of(codec_torch.decode(encoded)), EVERY_BASE)


def test_b1_swapped_zeros_and_changed_nan_payload_are_seen() -> None:
    # Upstream checks compare values: they reject a correct NaN and accept +0 for -0. Ours must do neither.
    zeros = np.array([[0x0000, 0x8000, 0x3F80, 0x7FC1, 0x7F81, 0xFFFF]], np.uint16)
    for codes in (False, True):
        decoded = codec.decode(codec.encode(zeros, Windows(np.array([112], np.uint8), codes)))
        assert decoded.tolist() == zeros.tolist()
    values = bf16(zeros).float()
    assert not torch.equal(values, values.clone())  # the value comparison that would reject it


def test_b2_subnormals_are_not_flushed() -> None:
    subnormal = np.concatenate([np.arange(1, 128), np.arange(0x8001, 0x8080)]).astype(np.uint16)[None]
    encoded = codec.encode(subnormal)
    assert encoded.base[0] == 0
    assert encoded.escapes == 0
    assert np.array_equal(codec.decode(encoded), subnormal)
    assert np.array_equal(bits_of(codec_torch.decode(codec_torch.encode(bf16(subnormal)))), subnormal)


def test_subnormals_among_normal_weights_are_escapes_with_exact_bits() -> None:
    row = np.full((1, 64), 0x3C12, np.uint16)
    row[0, [3, 40]] = [0x0001, 0x807F]
    encoded = codec.encode(row)
    assert encoded.col.tolist() == [3, 40]
    assert encoded.val.tolist() == [0x0001, 0x807F]
    assert np.array_equal(codec.decode(encoded), row)


def assert_same(found: W12Matrix, expected: W12Matrix) -> None:
    for field in ("a", "b", "base", "row_ptr", "col", "val"):
        assert np.array_equal(getattr(found, field), getattr(expected, field)), field
    assert (found.k, found.zero_code, found.zeros) == (expected.k, expected.zero_code, expected.zeros)
