"""Random matrices of random shapes: the codec is exact, numpy and torch agree, the side blob survives."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from w12_data import bf16, bits_of

from specpilot_sglang.w12 import codec, codec_torch, side
from specpilot_sglang.w12.spec import MAX_BASE, WINDOW, W12Matrix
from specpilot_sglang.w12.windows import Windows

SHAPES = st.tuples(st.integers(1, 300), st.integers(1, 40))


def weights(draw: st.DrawFn) -> np.ndarray:
    """A mixture: Gaussian rows of different scale, zeros, powers of two, and arbitrary bits."""
    n, k = draw(SHAPES)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.normal(size=(n, k)) * np.exp2(rng.integers(-40, 40, (n, 1)))
    bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    share = draw(st.sampled_from([0.0, 0.003, 0.3, 1.0]))
    bits[rng.random((n, k)) < share] = draw(st.sampled_from([0x0000, 0x8000, 0x3F80, 0x7F80, 0x0080]))
    raw = rng.random((n, k)) < draw(st.sampled_from([0.0, 0.01, 1.0]))
    bits[raw] = rng.integers(0, 1 << 16, raw.sum(), np.uint16)
    return bits


MATRICES = st.composite(weights)()


@settings(max_examples=150, deadline=None)
@given(MATRICES)
def test_round_trip_and_agreement_of_numpy_torch_and_file(bits: np.ndarray) -> None:
    encoded = codec.encode(bits)
    assert np.array_equal(codec.decode(encoded), bits)
    on_torch = codec_torch.encode(bf16(bits))
    same(on_torch.to_numpy(), encoded)
    assert np.array_equal(bits_of(codec_torch.decode(on_torch)), bits)
    blob = side.dump(encoded, bits.shape, b"\7" * 32)
    loaded, header = side.load(encoded.a, encoded.b, blob, "test")
    same(loaded, encoded)
    assert header.sha256 == b"\7" * 32
    assert (encoded.a.nbytes + encoded.b.nbytes + len(blob)) * 8 / bits.size == encoded.bits_per_weight()


@settings(max_examples=150, deadline=None)
@given(MATRICES)
def test_base_covers_most_weights_and_ties_take_the_higher_one(bits: np.ndarray) -> None:
    encoded = codec.encode(bits)
    exponent = (bits >> 7) & 0xFF
    magnitude = bits & 0x7FFF
    for r in range(min(bits.shape[0], 5)):
        covers = []
        for base in range(MAX_BASE + 1):
            inside = (exponent[r] >= base) & (exponent[r] < base + WINDOW)
            if encoded.zero_code:
                inside = (inside & (magnitude[r] != base << 7)) | (magnitude[r] == 0)
            covers.append(int(inside.sum()))
        best = max(b for b, c in enumerate(covers) if c == max(covers))
        only_zeros = encoded.zero_code and not magnitude[r].any()
        assert covers[encoded.base[r]] == max(covers)
        assert only_zeros or encoded.base[r] == best
        assert np.diff(encoded.row_ptr)[r] == bits.shape[1] - max(covers)


@settings(max_examples=60, deadline=None)
@given(MATRICES, st.data())
def test_order_of_rows_does_not_matter(bits: np.ndarray, data: st.DataObject) -> None:
    order = data.draw(hnp.arrays(np.int64, bits.shape[0], elements=st.integers(0, bits.shape[0] - 1)))
    whole = codec.encode(bits)
    windows = Windows(whole.base[order], whole.zero_code)
    part = codec.encode(bits[order], windows)
    assert np.array_equal(part.a, whole.a[order])
    assert np.array_equal(part.b, whole.b[order])


@settings(max_examples=60, deadline=None)
@given(MATRICES, st.data())
def test_column_slice_keeps_the_row_base_valid(bits: np.ndarray, data: st.DataObject) -> None:
    k = bits.shape[1]
    begin = data.draw(st.integers(0, k - 1))
    end = data.draw(st.integers(begin + 1, k))
    whole = codec.encode(bits)
    part = codec.encode(bits[:, begin:end], Windows(whole.base, whole.zero_code))
    assert np.array_equal(part.a, whole.a[:, begin:end])
    assert np.array_equal(codec.decode(part), bits[:, begin:end])


def same(found: W12Matrix, expected: W12Matrix) -> None:
    for field in ("a", "b", "base", "row_ptr", "col", "val"):
        assert np.array_equal(getattr(found, field), getattr(expected, field)), field
    assert (found.k, found.zero_code, found.zeros) == (expected.k, expected.zero_code, expected.zeros)
