"""The prefill kernel on a GPU: exact results, the bits of plain BF16, repeats, streams, graphs, strided results."""

from __future__ import annotations

import pytest
import torch
from gpu_weights import bits, gaussian, with_escapes

from specpilot_sglang.kernels.w12_gemm import wide
from specpilot_sglang.kernels.w12_gemm.pack import pack, pack_bf16
from specpilot_sglang.kernels.w12_gemm.ref import w12_gemm_ref
from specpilot_sglang.kernels.w12_gemm.tiling import Tiling
from specpilot_sglang.kernels.w12_gemm.wide import Shape, w12_wide
from specpilot_sglang.w12.codec_torch import encode, nested8_decode

CAPABLE = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not CAPABLE, reason="needs compute capability 9.0")]

TILINGS = [Tiling(16), Tiling(7, 2, 128), Tiling(4, 4), Tiling(17, 1, 128)]
SHAPES = [(1000, 2048), (96, 5120), (2304, 1024), (5120, 6144)]


@pytest.fixture(params=TILINGS, ids=lambda t: f"{t.rows}.{t.wk}")
def tiling(request) -> Tiling:
    return request.param


@pytest.fixture(params=[Shape(256), Shape(128)], ids=lambda s: str(s.tokens))
def shape(request) -> Shape:
    return request.param


def empty(tokens: int, n: int) -> torch.Tensor:
    return torch.full((tokens, n), float("nan"), device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("tokens", [65, 128, 300, 1000])
def test_integers_are_exact(size, tokens, tiling, shape) -> None:
    n, k = size
    torch.manual_seed(n + tokens)
    weight = torch.randint(-8, 9, (n, k), device="cuda").bfloat16()
    x = torch.randint(-4, 5, (tokens, k), device="cuda").bfloat16()
    odd = 2 * weight + 1
    for values, packed in (
        (weight, pack(encode(weight), tiling)),
        (weight, pack_bf16(weight, tiling)),
        (odd, pack(encode(odd), tiling)),
    ):
        out = w12_wide(x, packed, empty(tokens, n), shape=shape)
        assert torch.equal(out, (x.double() @ values.double().T).bfloat16())


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("tokens", [77, 513])
def test_same_bits_as_the_same_kernel_on_bf16(size, tokens, tiling, shape) -> None:
    n, k = size
    weight, x = with_escapes(n, k), gaussian(tokens, k, 1.0, tokens)
    encoded = encode(weight)
    packed = pack(encoded, tiling)
    plain = w12_wide(x, pack_bf16(weight, tiling), empty(tokens, n), shape=shape)
    assert torch.equal(bits(w12_wide(x, packed, empty(tokens, n), shape=shape)), bits(plain))
    view = w12_wide(x, pack_bf16(nested8_decode(encoded), tiling), empty(tokens, n), shape=shape)
    assert torch.equal(bits(w12_wide(x, packed, empty(tokens, n), nested=True, shape=shape)), bits(view))


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38, 1e-40])
def test_extreme_escapes(value, shape) -> None:
    weight, x = gaussian(256, 1024), gaussian(200, 1024, 1.0)
    weight[7, 3], weight[100, 1023], weight[101, 0] = value, value, -value
    tiling = Tiling(7, 2, 128)
    got = w12_wide(x, pack(encode(weight), tiling), empty(200, 256), shape=shape)
    assert torch.equal(bits(got), bits(w12_wide(x, pack_bf16(weight, tiling), empty(200, 256), shape=shape)))
    assert torch.isfinite(got).all(0).sum() >= 253


@pytest.mark.parametrize("size", SHAPES)
def test_accuracy_is_that_of_fp32_accumulation(size, shape) -> None:
    n, k = size
    x, encoded = gaussian(500, k, 1.0, 5), encode(gaussian(n, k))
    want = w12_gemm_ref(x.double(), encoded, accumulate=torch.float64)
    got = w12_wide(x, pack(encoded, Tiling(16)), empty(500, n), shape=shape).double()
    assert float((got - want).norm() / want.norm()) < 2.5e-3  # rounding to BF16 alone is 1.7e-3


@pytest.mark.parametrize("tokens", [129, 700])
def test_100_repeats_give_the_same_bits(tokens, shape) -> None:
    x, packed = gaussian(tokens, 6144, 1.0), pack(encode(with_escapes(5120, 6144)), Tiling(4, 4))
    first = w12_wide(x, packed, empty(tokens, 5120), shape=shape)
    outs = [w12_wide(x, packed, empty(tokens, 5120), shape=shape) for _ in range(100)]
    assert all(torch.equal(bits(first), bits(out)) for out in outs)


def test_two_streams_and_a_poisoned_workspace_under_a_graph(shape) -> None:
    x, packed = gaussian(300, 2048, 1.0), pack(encode(gaussian(3000, 2048)), Tiling(16))
    want = w12_wide(x, packed, empty(300, 3000), shape=shape)
    streams, outs = [torch.cuda.Stream() for _ in range(2)], [empty(300, 3000) for _ in range(2)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(streams[0]):
        w12_wide(x, packed, outs[0], shape=shape)
        with torch.cuda.graph(graph, stream=streams[0]):
            w12_wide(x, packed, outs[0], shape=shape)
    torch.cuda.synchronize()
    for partial, ready in wide._STATE.workspaces.values():
        partial.fill_(float("nan"))
        assert int(ready.abs().sum()) == 0
    torch.cuda.synchronize()
    for _ in range(500):
        with torch.cuda.stream(streams[1]):
            w12_wide(x, packed, outs[1], shape=shape)
        with torch.cuda.stream(streams[0]):
            graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(bits(out), bits(want)) for out in outs)


@pytest.mark.parametrize("size", [(2048, 2048), (5120, 5120)])
def test_an_overlapping_launch_waits_for_its_input(size, shape) -> None:
    packed, start = pack(encode(gaussian(*size, size[1] ** -0.5)), Tiling(4, 4)), gaussian(300, size[1], 1.0)
    results = []
    for overlap in (False, True, True):
        x = start
        for _ in range(30):
            x = w12_wide(x, packed, torch.empty_like(x), shape=shape, overlap=overlap)
        results.append(x)
    assert torch.isfinite(results[0]).all()
    assert float(results[0].abs().max()) > 0
    assert all(torch.equal(bits(results[0]), bits(x)) for x in results[1:])


def test_row_slices_and_strided_out(shape) -> None:
    packed = pack(encode(gaussian(200, 1024)), Tiling(7, 2, 128))
    wide_x, out = gaussian(150, 2048, 1.0), empty(150, 304).fill_(7.0)
    x = wide_x[:, 1024:]
    w12_wide(x, packed, out[:, :200], shape=shape)
    assert torch.equal(bits(out[:, :200]), bits(w12_wide(x.contiguous(), packed, empty(150, 200), shape=shape)))
    assert bool((out[:, 200:] == 7).all())
