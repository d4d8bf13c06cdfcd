"""Shapes, strides and dtypes at the edge, windows at the edge, and the zero code."""

import numpy as np
import pytest
import torch
from w12_data import ALL_PATTERNS, bf16, bits_of, gaussian

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12 import codec, codec_torch, side
from specpilot_sglang.w12.spec import base_bits, col_bytes, stored_bytes


def both(bits: np.ndarray) -> codec.W12Matrix:
    """Encode with numpy and torch, check both decode exactly, return the matrix."""
    encoded = codec.encode(bits)
    assert np.array_equal(codec.decode(encoded), bits)
    other = codec_torch.encode(bf16(bits))
    assert np.array_equal(other.a.numpy(), encoded.a)
    assert np.array_equal(other.b.numpy(), encoded.b)
    assert np.array_equal(bits_of(codec_torch.decode(other)), bits)
    return encoded


@pytest.mark.parametrize("shape", [(1, 1), (5, 1), (1, 2), (3, 15), (2, 16), (7, 17), (129, 3), (128, 1), (1, 5120)])
def test_small_and_odd_shapes(shape: tuple[int, int]) -> None:
    encoded = both(bits_of(gaussian(*shape)))
    assert encoded.b.shape == (shape[0], (shape[1] + 1) // 2)
    if shape[1] % 2:
        assert not (encoded.b[:, -1] >> 4).any()  # the unused nibble is 0, so files are deterministic


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0, 0)])
def test_empty_shapes(shape: tuple[int, int]) -> None:
    encoded = both(np.zeros(shape, np.uint16))
    blob = side.dump(encoded, shape, b"\0" * 32)
    assert side.load(encoded.a, encoded.b, blob, "x")[0].n == shape[0]


def test_low_nibble_is_the_even_column() -> None:
    bits = np.array([[0x3F81, 0x3F82, 0x3F83]], np.uint16)
    assert both(bits).b.tolist() == [[0x21, 0x03]]


def test_plane_a_layout_is_sign_offset_upper_mantissa() -> None:
    bits = np.array([[0x3F80, 0x3F80 + (15 << 7) + 0x7F, 0x8000 | 0x3F80 | 0x50]], np.uint16)
    encoded = both(bits)
    assert encoded.base.tolist() == [0x7F]
    assert encoded.a.tolist() == [[0b0_0000_000, 0b0_1111_111, 0b1_0000_101]]


def test_ties_take_the_higher_base_and_keep_the_large_weight() -> None:
    exponents = np.array([100] * 3 + [120] * 3)
    encoded = both((exponents << 7).astype(np.uint16)[None])
    assert encoded.base.tolist() == [120]
    constant = both(np.full((1, 8), 0x3F80, np.uint16))
    assert constant.base.tolist() == [0x7F]
    assert constant.escapes == 0


def test_infinity_and_nan_rows_use_the_highest_window() -> None:
    encoded = both(np.full((1, 20), 0x7F80, np.uint16))
    assert encoded.base.tolist() == [240]
    assert encoded.escapes == 0


def test_all_zero_matrix_has_no_escape() -> None:
    encoded = both(np.zeros((40, 64), np.uint16))
    assert (encoded.escapes, encoded.zeros) == (0, 40 * 64)
    assert not encoded.base.any()


def test_zero_code_makes_zeros_free_and_keeps_their_sign() -> None:
    bits = bits_of(gaussian(200, 256))
    bits[:, ::50] = 0x0000
    bits[:, 1::50] = 0x8000
    encoded = both(bits)
    assert encoded.zero_code
    assert encoded.escapes < 10
    assert encoded.a[0, 0] == 0x00
    assert encoded.a[0, 1] == 0x80


def test_few_zeros_do_not_slow_the_decoder_down() -> None:
    bits = bits_of(gaussian(200, 256))
    bits[7, 9] = 0
    encoded = both(bits)
    assert not encoded.zero_code
    assert encoded.escapes >= 1


def test_all_zero_rows_do_not_widen_the_bases() -> None:
    # Padded vocabulary rows: coded by any base, so they take one that keeps bases in four bits.
    bits = bits_of(gaussian(256, 256))
    bits[200:] = 0
    encoded = both(bits)
    assert encoded.zero_code
    assert base_bits(encoded.base) == 4
    assert encoded.bits_per_weight() < 12.05


def test_ternary_weights_collide_with_the_zero_code_and_move_the_window() -> None:
    # +-1 and 0 only: the highest base that covers 1.0 would give it the zero code.
    rng = np.random.default_rng(0)
    bits = rng.choice(np.array([0x3F80, 0xBF80, 0x0000], np.uint16), (64, 512))
    encoded = both(bits)
    assert encoded.zero_code
    assert encoded.escapes == 0
    assert set(encoded.base.tolist()) == {0x7E}


def test_rows_of_very_different_scale_store_bases_in_eight_bits() -> None:
    rows = torch.stack([gaussian(1, 256, i)[0] * 2.0 ** (4 * i) for i in range(20)])
    encoded = both(bits_of(rows))
    assert encoded.base_bits == 8
    blob = side.dump(encoded, rows.shape, b"\0" * 32)
    assert np.array_equal(side.load(encoded.a, encoded.b, blob, "x")[0].base, encoded.base)


def test_columns_beyond_65536_do_not_overflow() -> None:
    k = 70_001
    bits = np.full((3, k), 0x3C12, np.uint16)
    bits[1, [0, 65_535, 65_536, k - 1]] = 0x7F81
    encoded = both(bits)
    assert encoded.col.tolist() == [0, 65_535, 65_536, k - 1]
    blob = side.dump(encoded, bits.shape, b"\0" * 32)
    loaded, _ = side.load(encoded.a, encoded.b, blob, "x")
    assert np.array_equal(codec.decode(loaded), bits)
    assert (col_bytes(65_536), col_bytes(65_537)) == (2, 4)


def test_element_counts_beyond_32_bits_do_not_overflow() -> None:
    # 262,144 x 8,192 is exactly 2^31: sizes are Python integers, offsets int64.
    assert stored_bytes(262_144, 8_192, 0, 4, 2) > 3 << 30
    with pytest.raises(OverflowError):
        col_bytes((1 << 32) + 1)


def test_row_longer_than_a_chunk_is_coded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "CHUNK", 64)
    bits = bits_of(gaussian(5, 333))
    bits[2, [0, 63, 64, 65, 332]] = 0x7F80
    encoded = both(bits)
    assert encoded.col[encoded.row_ptr[2] : encoded.row_ptr[3]].tolist() == [0, 63, 64, 65, 332]
    monkeypatch.undo()
    whole = codec.encode(bits)
    assert np.array_equal(whole.a, encoded.a)
    assert np.array_equal(whole.col, encoded.col)


@pytest.mark.parametrize("view", ["transposed", "offset", "strided", "expanded", "grad"])
def test_strides_offsets_and_gradients(view: str) -> None:
    base = gaussian(64, 48)
    tensor = {
        "transposed": base.T,
        "offset": base[3:, 5:],
        "strided": base[::2, ::3],
        "expanded": base[:1].expand(64, 48),
        "grad": torch.nn.Parameter(base),
    }[view]
    encoded = codec_torch.encode(tensor)
    assert torch.equal(codec_torch.decode(encoded), tensor)
    plain = codec.encode(bits_of(tensor.detach()))
    assert np.array_equal(encoded.a.numpy(), plain.a)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float8_e4m3fn, torch.int16, torch.uint8])
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(W12Error, match="BF16 matrix") as error:
        codec_torch.encode(torch.zeros(4, 4).to(dtype))
    assert error.value.fix


def test_meta_tensors_and_other_ranks_are_refused() -> None:
    with pytest.raises(W12Error, match="meta"):
        codec_torch.encode(torch.zeros(4, 4, dtype=torch.bfloat16, device="meta"))
    with pytest.raises(W12Error, match="matrix"):
        codec_torch.encode(torch.zeros(4, dtype=torch.bfloat16))
    with pytest.raises(W12Error, match="uint16"):
        codec.encode(np.zeros((4, 4), np.float32))


def test_decode_into_a_given_tensor_keeps_its_storage() -> None:
    weight = gaussian(33, 65)
    out = torch.zeros(33, 65, dtype=torch.bfloat16)
    pointer = out.data_ptr()
    assert codec_torch.decode(codec_torch.encode(weight), out=out) is out
    assert out.data_ptr() == pointer
    assert torch.equal(out, weight)


def test_escapes_stay_rare_on_gaussian_rows() -> None:
    encoded = codec.encode(bits_of(gaussian(512, 5120)))
    assert encoded.escapes / encoded.a.size < 1.5e-4
    assert encoded.bits_per_weight() < 12.01


def test_random_bits_exceed_max_bits() -> None:
    # Bytes drawn at random are not weights: half of all exponents lie outside any window.
    bits = np.random.default_rng(0).choice(ALL_PATTERNS, (64, 256))
    assert both(bits).bits_per_weight() > 16
