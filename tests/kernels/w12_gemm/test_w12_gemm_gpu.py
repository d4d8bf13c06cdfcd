"""The kernel on a GPU: exact results, the same bits at every M and for plain BF16, streams, graphs."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch
from gpu_weights import bits, gaussian, with_escapes

from specpilot_sglang.errors import W12Error
from specpilot_sglang.kernels.w12_gemm import launch, wide
from specpilot_sglang.kernels.w12_gemm.build import KernelBuildError
from specpilot_sglang.kernels.w12_gemm.launch import prepare, w12_gemm
from specpilot_sglang.kernels.w12_gemm.linear import (
    _by_slices,
    decode_weight,
    pack_layer,
    prepare_layer,
    refresh,
    w12_linear,
)
from specpilot_sglang.kernels.w12_gemm.pack import PackedWeight, pack, pack_bf16
from specpilot_sglang.kernels.w12_gemm.plan import choose
from specpilot_sglang.kernels.w12_gemm.ref import w12_gemm_ref
from specpilot_sglang.kernels.w12_gemm.tiling import Decoder, Tiling
from specpilot_sglang.w12.codec_torch import encode, nested8_decode
from specpilot_sglang.w12.windows import Windows

CAPABLE = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not CAPABLE, reason="needs compute capability 9.0 or higher")]

#: What `plan.choose` gives to weights of very different shapes.
DEFAULT = [
    Tiling(16), Tiling(17, 1, 128), Tiling(7, 2, 128), Tiling(5, 2, 128), Tiling(4, 4), Tiling(3, 4, 128),
    Tiling(1, 2, 96),
]  # fmt: skip
#: `SPECPILOT_W12_TILINGS="16;7,2,128"` runs everything on other tilings, for tuning.
TILINGS = [Tiling(*map(int, t.split(","))) for t in os.environ.get("SPECPILOT_W12_TILINGS", "").split(";") if t]
SHAPES = [(128, 512), (96, 5120), (65, 1024), (1000, 2048), (1536, 1536), (5120, 6144)]


@pytest.fixture(params=TILINGS or DEFAULT, ids=lambda t: f"{t.rows}.{t.wk}.{t.ctas}")
def tiling(request) -> Tiling:
    return request.param


#: Streams that `settle` waits for.
STREAMS: list[torch.cuda.Stream] = []


def calls(x: torch.Tensor, weight: PackedWeight, **options) -> torch.Tensor:
    return torch.cat([w12_gemm(x[i : i + 1], weight, **options) for i in range(x.shape[0])])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [1, 16, 33, 64])
def test_integers_are_exact(shape, tokens, tiling) -> None:
    n, k = shape
    torch.manual_seed(n + tokens)
    weight = torch.randint(-8, 9, (n, k), device="cuda").bfloat16()
    x = torch.randint(-4, 5, (tokens, k), device="cuda").bfloat16()
    want = (x.double() @ weight.double().T).bfloat16()
    encoded = encode(weight)
    assert encoded.zero_code
    out = torch.full((tokens, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    for packed in (pack(encoded, tiling), pack_bf16(weight, tiling)):
        w12_gemm(x, packed, out=out.fill_(float("nan")))
        assert torch.equal(out, want)
    odd = 2 * weight + 1
    assert torch.equal(w12_gemm(x, pack(encode(odd), tiling)), (x.double() @ odd.double().T).bfloat16())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [1, 7, 16, 64])
def test_same_bits_as_the_same_kernel_on_bf16(shape, tokens, tiling) -> None:
    weight, x = with_escapes(*shape), gaussian(tokens, shape[1], 1.0, tokens)
    encoded = encode(weight)
    packed = pack(encoded, tiling)
    assert torch.equal(bits(w12_gemm(x, packed)), bits(w12_gemm(x, pack_bf16(weight, tiling))))
    view = pack_bf16(nested8_decode(encoded), tiling)
    assert torch.equal(bits(w12_gemm(x, packed, nested=True)), bits(w12_gemm(x, view)))


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3e38, 1e-40])
def test_extreme_escapes(value, tiling) -> None:
    weight, x = gaussian(128, 1024), gaussian(9, 1024, 1.0)
    weight[7, 3], weight[100, 1023], weight[101, 0] = value, value, -value
    packed = pack(encode(weight), tiling)
    got, same = w12_gemm(x, packed), w12_gemm(x, pack_bf16(weight, tiling))
    assert torch.equal(bits(got), bits(same))
    assert torch.isfinite(got).all(0).sum() >= 125


@pytest.mark.parametrize("shape", SHAPES)
def test_accuracy_is_that_of_fp32_accumulation(shape, tiling) -> None:
    x, encoded = gaussian(16, shape[1], 1.0, 5), encode(gaussian(*shape))
    want = w12_gemm_ref(x.double(), encoded, accumulate=torch.float64)
    got = w12_gemm(x, pack(encoded, tiling)).double()
    assert float((got - want).norm() / want.norm()) < 2.5e-3  # rounding to BF16 alone is 1.7e-3


@pytest.mark.parametrize("shape", [(1000, 2048), (1536, 1536), (5120, 6144)])
@pytest.mark.parametrize("nested", [False, True])
def test_a_tokens_bits_do_not_depend_on_the_others(shape, nested, tiling) -> None:
    x, packed = gaussian(64, shape[1], 1.0, 3), pack(encode(with_escapes(*shape)), tiling)
    alone = calls(x, packed, nested=nested)
    for tokens in range(1, 65):
        assert torch.equal(bits(w12_gemm(x[:tokens], packed, nested=nested)), bits(alone[:tokens])), tokens
    x[1:] = float("nan")
    assert torch.equal(bits(w12_gemm(x, packed, nested=nested)[0]), bits(alone[0]))


@pytest.mark.parametrize("base", [0, 1, 96, 112, 127, 240])
def test_every_finite_pattern_is_decoded_exactly(base, tiling) -> None:
    patterns = np.random.default_rng(base).permutation(1 << 16)
    patterns[(patterns & 0x7F80) == 0x7F80] = 0x3F80
    weight = torch.from_numpy(patterns.astype(np.uint16).view(np.int16)).cuda().view(torch.bfloat16).view(-1, 512)
    encoded = encode(weight, Windows(np.full(weight.shape[0], base, np.uint8), False))
    packed, plain = pack(encoded, tiling), pack_bf16(weight, tiling)
    for begin in range(0, 512, 64):
        x = torch.zeros(64, 512, device="cuda", dtype=torch.bfloat16)
        x[range(64), range(begin, begin + 64)] = 1.0
        got = w12_gemm(x, packed)
        assert torch.equal(bits(got), bits(w12_gemm(x, plain)))
        assert torch.equal(got, weight[:, begin : begin + 64].T)


@pytest.mark.parametrize("rows", [8, 24, 32, 48, 65])
@pytest.mark.parametrize("tokens", [1, 16, 64])
def test_b9_few_rows_equal_the_reference(rows, tokens, tiling) -> None:
    weight = with_escapes(rows, 1024)
    weight[weight.abs() > 100] = 7.0  # rows whose sums a double can be compared with
    x, encoded = gaussian(tokens, 1024, 1.0), encode(weight)
    out = torch.full((tokens, rows), float("nan"), device="cuda", dtype=torch.bfloat16)
    w12_gemm(x, pack(encoded, tiling), out=out)
    want = w12_gemm_ref(x.double(), encoded, accumulate=torch.float64)
    assert float((out.double() - want).norm() / want.norm()) < 2.5e-3
    assert torch.equal(bits(out), bits(w12_gemm(x, pack_bf16(weight, tiling))))


@pytest.mark.parametrize("shape", [(256, 512), (1000, 2048), (5120, 6144)])
@pytest.mark.parametrize("tokens", [16, 33, 64])
def test_200_repeats_give_the_same_bits(shape, tokens, tiling) -> None:
    x, packed = gaussian(tokens, shape[1], 1.0), pack(encode(with_escapes(*shape)), tiling)
    first = w12_gemm(x, packed)
    outs = [w12_gemm(x, packed) for _ in range(200)]
    assert all(torch.equal(bits(first), bits(out)) for out in outs)


@pytest.mark.parametrize("shape", [(65, 1024), (1000, 2048)])
@pytest.mark.parametrize("zeros", [False, True])
def test_decode_kernel_gives_back_the_weight_and_its_view(shape, zeros, tiling) -> None:
    weight = with_escapes(*shape)
    if zeros:
        weight[:, 1::3], weight[:, 2::9] = 0.0, -0.0
    encoded = encode(weight)
    packed = pack(encoded, tiling)
    assert encoded.zero_code == zeros
    assert torch.equal(bits(decode_weight(packed)), bits(weight))
    assert torch.equal(bits(decode_weight(packed, nested=True)), bits(nested8_decode(encoded)))


def test_many_tokens_take_the_wide_kernel_or_the_library(tiling, monkeypatch) -> None:
    weight, x = gaussian(200, 1024), gaussian(130, 1024, 1.0).view(2, 65, 1024)
    packed = pack(encode(weight), tiling)
    monkeypatch.setattr(wide, "SMALLEST", 1)
    if torch.cuda.get_device_capability() == (9, 0):
        expected = wide.w12_wide(x.view(130, 1024), packed, x.new_empty((130, 200)))
        assert torch.equal(bits(w12_linear(x, packed)), bits(expected.view(2, 65, 200)))
    monkeypatch.setattr(wide, "MOST_TOKENS", 129)
    assert torch.equal(bits(w12_linear(x, packed)), bits(torch.nn.functional.linear(x, weight)))
    assert torch.equal(bits(w12_linear(x[:1, :3], packed)[0]), bits(w12_gemm(x[0, :3], packed)))


def test_a_result_that_the_copy_engine_cannot_store_takes_the_library() -> None:
    weight, x = gaussian(200, 1024), gaussian(130, 1024, 1.0)
    packed, out = pack(encode(weight), Tiling(16)), torch.empty(130, 300, device="cuda", dtype=torch.bfloat16)
    assert not wide.takes(x, packed, out[:, :200])
    w12_linear(x, packed, out=out[:, :200])
    assert torch.allclose(out[:, :200].float(), (x.double() @ weight.double().T).float(), rtol=1e-2, atol=1e-2)


#: [N, K] of the shards of a 27B and an 8B model's layers under tensor parallelism of 2 and 4.
SHARDS = [
    (7168, 5120), (3584, 5120), (5120, 3072), (5120, 1536), (17408, 5120), (8704, 5120), (5120, 8704), (5120, 4352),
    (8192, 5120), (4096, 5120), (48, 5120), (24, 5120), (12288, 4096), (6144, 4096), (4096, 6144), (4096, 3072),
    (3072, 4096), (1536, 4096), (4096, 2048), (4096, 1024),
]  # fmt: skip


@pytest.mark.parametrize("shard", SHARDS)
def test_shards_of_tensor_parallel_layers_are_exact(shard) -> None:
    n, k = shard
    weight, x = with_escapes(n, k), gaussian(200, k, 1.0, 7)
    packed, plain = pack_layer(encode(weight)), pack_bf16(weight, choose(n, k))
    assert torch.equal(bits(decode_weight(packed)), bits(weight))
    alone = w12_gemm(x[:1], packed)
    assert torch.equal(bits(alone), bits(w12_gemm(x[:1], plain)))
    for tokens in (2, 16, 33, 64):
        assert torch.equal(bits(w12_gemm(x[:tokens], packed)[:1]), bits(alone)), tokens
    if torch.cuda.get_device_capability() == (9, 0):
        outs = [wide.w12_wide(x, w, x.new_empty((200, n))) for w in (packed, plain)]
        assert torch.equal(*map(bits, outs))


def test_slices_along_n_give_the_same_as_the_whole(tiling) -> None:
    weight, x = gaussian(1000, 1024), gaussian(130, 1024, 1.0)
    packed = pack(encode(weight), tiling)
    whole = torch.randn(130, 1100, device="cuda").bfloat16()
    sliced = _by_slices(x, packed, False, whole[:, :1000], 2 * 300 * 1024)
    assert torch.allclose(sliced.float(), (x.double() @ weight.double().T).float(), rtol=1e-2, atol=1e-2)


def test_refresh_keeps_graphs_valid() -> None:
    x, old, new = gaussian(3, 1024, 1.0), gaussian(512, 1024), with_escapes(512, 1024)
    packed = pack_layer(encode(old))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        prepare_layer(packed)
        w12_linear(x, packed)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = w12_linear(x, packed)
        refresh(packed, encode(new))
        graph.replay()
        assert torch.equal(bits(out), bits(w12_linear(x, pack_layer(encode(new)))))
        with pytest.raises(W12Error, match="another kernel"):
            refresh(packed, encode(gaussian(512, 512)))


def test_heavy_escapes_are_exact(tiling) -> None:
    weight, x = gaussian(512, 2048), gaussian(40, 2048, 1.0)
    weight[torch.rand(512, 2048, device="cuda") < 0.02] = 1e3
    packed, plain = pack(encode(weight), tiling), pack_bf16(weight, tiling)
    for tokens in (1, 16, 40):
        assert torch.equal(bits(w12_gemm(x[:tokens], packed)), bits(w12_gemm(x[:tokens], plain)))


def settle(seconds: float = 60.0) -> None:
    """Wait for the GPU, but not for ever: launches that wait for each other would never end."""
    done = torch.cuda.Event()
    for stream in (torch.cuda.current_stream(), *STREAMS):
        torch.cuda.current_stream().wait_stream(stream)
    done.record()
    limit = time.monotonic() + seconds
    while not done.query():
        if time.monotonic() > limit:
            os._exit(3)  # the context is lost: no call would return
        time.sleep(0.01)


def test_two_streams(tiling) -> None:
    x, packed = gaussian(16, 2048, 1.0), pack(encode(gaussian(1000, 2048)), tiling)
    want = w12_gemm(x, packed)
    streams = [torch.cuda.Stream() for _ in range(2)]
    STREAMS[:] = streams
    outs = []
    for stream in streams:
        with torch.cuda.stream(stream):
            prepare(packed)
            outs.append(torch.empty(8, *want.shape, device="cuda", dtype=torch.bfloat16))
    torch.cuda.synchronize()
    for turn in range(5000):
        for stream, out in zip(streams, outs, strict=True):
            with torch.cuda.stream(stream):
                w12_gemm(x, packed, out=out[turn % 8])
    settle()
    assert all(torch.equal(bits(y), bits(want)) for out in outs for y in out)


def test_graph_replay_with_poisoned_workspace(tiling) -> None:
    x, packed = gaussian(5, 2048, 1.0), pack(encode(gaussian(1000, 2048)), tiling)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        prepare(packed)
        want = w12_gemm(x, packed)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = w12_gemm(x, packed)
        for _ in range(2):
            for space in launch._STATE.workspaces.values():
                space.partial.fill_(float("nan"))
                assert int(space.counter.abs().sum()) == 0
            out.fill_(float("nan"))
            graph.replay()
            assert torch.equal(bits(out), bits(want))


def test_capture_without_prepare_is_refused(tiling) -> None:
    x, packed = gaussian(1, 1024, 1.0), pack(encode(gaussian(200, 1024)), tiling)
    w12_gemm(x, packed)
    launch._STATE.workspaces.clear()  # torch hands out streams of a pool again
    stream = torch.cuda.Stream()
    with pytest.raises(KernelBuildError, match="prepare"), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        w12_gemm(x, packed)
    torch.cuda.synchronize()


@pytest.mark.parametrize("tokens", [1, 8, 16, 64])
def test_chunks_called_ahead_change_no_bit(tokens, tiling, monkeypatch) -> None:
    x = gaussian(tokens, 2048, 1.0)
    weights = [pack(encode(gaussian(5120, 2048, seed=seed)), tiling) for seed in range(3)]
    stream, results = torch.cuda.Stream(), []
    with torch.cuda.stream(stream):
        for ahead in (0, 64 << 10, 1 << 20):
            monkeypatch.setattr(launch, "AHEAD", ahead)
            monkeypatch.setattr(launch, "AHEAD_SHARE", 1)
            results.append([w12_gemm(x, weights[i % 3]) for i in range(40)])
        (space,) = [s for (_, key), s in launch._STATE.workspaces.items() if key == stream.cuda_stream]
        marks = [0, 0]
        if tokens <= 8 or (tokens <= 16 and tiling.rows * tiling.wk <= 10):  # those that look ahead
            marks[1 - space.turn] = 1  # the last launch's mark stands, the one before it is cleared
        assert space.marks.tolist() == marks
        for value in (0, 1):  # marks that are missing or old
            space.marks.fill_(value)
            results.append([w12_gemm(x, weights[i % 3]) for i in range(3)])
    torch.cuda.synchronize()
    first = results[0][:3]
    assert all(torch.equal(bits(y), bits(first[i % 3])) for row in results for i, y in enumerate(row))


def test_an_overlapping_launch_waits_for_its_input(tiling) -> None:
    packed, start = pack(encode(gaussian(2048, 2048, 0.022)), tiling), gaussian(16, 2048, 1.0)
    results = []
    for overlap in (False, True, True):
        x = start
        for _ in range(50):
            x = w12_gemm(x, packed, overlap=overlap)
        results.append(x)
    assert torch.isfinite(results[0]).all()
    assert float(results[0].abs().max()) > 0
    assert all(torch.equal(bits(results[0]), bits(x)) for x in results[1:])


def test_b17_a_failed_allocation_is_raised_and_harms_nothing() -> None:
    x, packed = gaussian(64, 1024, 1.0), pack(encode(gaussian(8448, 1024)), Tiling(16))
    out = w12_gemm(x, packed)
    want, stream = out.clone(), torch.cuda.Stream()
    launch._STATE.workspaces.pop((torch.cuda.current_device(), stream.cuda_stream), None)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    try:
        torch.cuda.set_per_process_memory_fraction(1e-5)
        with torch.cuda.stream(stream), pytest.raises(torch.OutOfMemoryError):
            w12_gemm(x, packed, out=out)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    with torch.cuda.stream(stream):
        w12_gemm(x, packed, out=out.fill_(float("nan")))
    torch.cuda.synchronize()
    assert torch.equal(bits(out), bits(want))


def test_row_slices_and_strided_out(tiling) -> None:
    packed = pack(encode(gaussian(200, 1024)), tiling)
    wide = gaussian(6, 2048, 1.0)
    x = wide[:, 1024:]
    out = torch.full((6, 300), 7.0, device="cuda", dtype=torch.bfloat16)
    w12_gemm(x, packed, out=out[:, :200])
    assert torch.equal(bits(out[:, :200]), bits(w12_gemm(x.contiguous(), packed)))
    assert bool((out[:, 200:] == 7).all())
    assert w12_gemm(x[:0], packed).shape == (0, 200)


def test_wrong_inputs_are_named(tiling) -> None:
    packed = pack(encode(gaussian(200, 1024)), tiling)
    for x, message in (
        (gaussian(65, 1024), "at most 64"),
        (gaussian(1, 512), "1024"),
        (gaussian(1, 1024).float(), "bfloat16"),
        (gaussian(1, 1024).cpu(), "one CUDA device"),
        (gaussian(2, 1028)[:, 4:], "16 bytes"),
    ):
        with pytest.raises(ValueError, match=message):
            w12_gemm(x, packed)
    with pytest.raises(ValueError, match="no nested"):
        w12_gemm(gaussian(1, 1024), pack_bf16(gaussian(16, 1024), tiling), nested=True)


def test_all_decoders_are_covered() -> None:
    assert {d.name for d in Decoder} == {"BF16", "W12", "NESTED8", "W12_ZERO"}
