"""Packed weights with the fused kernel on a GPU: graphs, streams, updates. Needs torch alone, not SGLang."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from w12_data import gaussian

from specpilot_sglang.w12 import ops
from specpilot_sglang.w12.kernel import FusedKernel
from specpilot_sglang.w12.resident import ResidentWeight

pytestmark = pytest.mark.gpu

N, K = 2048, 1024


@pytest.fixture(autouse=True)
def _always_packed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPECPILOT_W12_DISPATCH", "always")
    with torch.inference_mode():
        yield


def packed(weight: torch.Tensor) -> ResidentWeight:
    n, k = weight.shape
    device = torch.device("cuda", torch.cuda.current_device())
    resident = ResidentWeight(n, k, device, "layer", FusedKernel(), 16.0)
    with resident.filling() as buffer:
        buffer.copy_(weight)
    assert resident.packed is not None
    resident.backend.prepare(resident.packed)
    return resident


def tokens(rows: int, k: int = K) -> torch.Tensor:
    return gaussian(rows, k, rows, 1.0).cuda()


def spoiled(n: int, k: int, seed: int) -> torch.Tensor:
    weight = gaussian(n, k, seed)
    for column, value in ((0, 2.0**20), (k // 2, -(2.0**-60)), (k - 1, 1e-39)):
        weight[::97, column] = value
    return weight


@pytest.mark.parametrize("rows", [1, 3, 8, 17, 64, 65, 300])
def test_product_is_that_of_the_exact_weight(rows: int) -> None:
    weight = spoiled(N, K, 0)
    resident, x = packed(weight), tokens(rows)
    assert torch.equal(resident.dense().cpu().view(torch.int16), weight.view(torch.int16))
    y = ops.w12_linear(x, resident.handle, N)
    expected = x.double() @ weight.cuda().double().T
    assert ((y.double() - expected).norm() / expected.norm()).item() < 4e-3
    finite = torch.isfinite(expected)
    assert torch.equal(torch.isfinite(y), finite)


def test_row_of_many_tokens_is_the_one_token_call() -> None:
    resident, x = packed(spoiled(N, K, 0)), tokens(64)
    alone = torch.cat([ops.w12_linear(x[i : i + 1], resident.handle, N) for i in range(64)])
    for rows in (2, 5, 8, 16, 33, 64):
        assert torch.equal(ops.w12_linear(x[:rows], resident.handle, N), alone[:rows]), rows


def test_row_slices_of_a_wider_matrix() -> None:
    resident, wide = packed(gaussian(N, K, 0)), tokens(4, K + 8)
    for begin in (0, 3, 8):  # 3: rows that the copy engine cannot address
        x = wide[:, begin : begin + K]
        assert torch.equal(ops.w12_linear(x, resident.handle, N), ops.w12_linear(x.contiguous(), resident.handle, N))


@pytest.mark.parametrize("rows", [1, 16])
def test_b10_captured_graph_serves_updated_weights(rows: int) -> None:
    first, second = spoiled(N, K, 0), spoiled(N, K, 1)
    resident, x = packed(first), tokens(rows)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        ops.w12_linear(x, resident.handle, N)  # this stream's workspace
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            y = ops.w12_linear(x, resident.handle, N)
        graph.replay()
    stream.synchronize()
    assert torch.equal(y, ops.w12_linear(x, packed(first).handle, N))
    with resident.filling() as buffer:
        buffer.copy_(second)
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, ops.w12_linear(x, packed(second).handle, N))


def test_two_streams_in_one_graph_do_not_share_partial_sums() -> None:
    a, b, x = packed(gaussian(N, K, 0)), packed(gaussian(96, K, 1)), tokens(4)
    expected = ops.w12_linear(x, a.handle, N), ops.w12_linear(x, b.handle, 96)
    main, side = torch.cuda.Stream(), torch.cuda.Stream()

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        side.wait_stream(main)
        left = ops.w12_linear(x, a.handle, N)
        with torch.cuda.stream(side):
            right = ops.w12_linear(x, b.handle, 96)
        main.wait_stream(side)
        return left, right

    with torch.cuda.stream(main):
        both()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=main):
            found = both()
        for _ in range(200):
            graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(y, e) for y, e in zip(found, expected, strict=True))


def test_packed_weight_takes_three_quarters_of_the_memory() -> None:
    first = packed(gaussian(4096, 4096, 1))  # workspace and scratch are one for all layers
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    resident = packed(gaussian(4096, 4096, 0))
    held = torch.cuda.memory_allocated() - before
    assert held < 0.77 * 2 * resident.n * resident.k
    assert resident.record is not None
    assert resident.record.resident_bytes <= held
    assert first.packed is not resident.packed


def test_encoding_a_large_matrix_takes_milliseconds() -> None:
    from specpilot_sglang.w12.kernel import encode

    weight = torch.randn(17408, 5120, device="cuda").mul_(0.02).bfloat16()
    encode(weight)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    encode(weight)
    end.record()
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) < 200
