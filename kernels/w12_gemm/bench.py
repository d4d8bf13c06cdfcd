"""Times the kernel against the best BF16 kernel as a server runs them: CUDA graph, cold weights, interleaved, medians.

Every graph walks over enough copies of its weight that they exceed `ROTATED` bytes, several times the L2 of any
GPU it runs on; otherwise a 50 MB weight is read from the cache and every ratio is wrong. The graphs of all candidates
of one shape and number of tokens are replayed in turn, so that all see the same clocks and temperatures.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as functional

from specpilot_sglang.errors import W12Error
from specpilot_sglang.kernels.w12_gemm import gemv, wide
from specpilot_sglang.kernels.w12_gemm.launch import prepare, w12_gemm
from specpilot_sglang.kernels.w12_gemm.linear import _by_slices, decode_weight, prepare_layer, w12_linear
from specpilot_sglang.kernels.w12_gemm.pack import PackedWeight, pack
from specpilot_sglang.kernels.w12_gemm.plan import choose
from specpilot_sglang.kernels.w12_gemm.tiling import MAX_TOKENS, Decoder
from specpilot_sglang.w12.codec_torch import decode
from specpilot_sglang.w12.kernel import encode

#: Bytes of weights a graph reads before it comes back to the first copy (twice the 60 MB L2 of an H200, and more).
ROTATED = 300 << 20
#: Microseconds a graph aims to run, and how often each is replayed.
GRAPH_US, REPLAYS = 1000.0, 11
#: Weights of Qwen3.8-27B, of an 8B and of a 1.5B model, [N, K].
SHAPES = (
    (14336, 5120), (5120, 6144), (34816, 5120), (5120, 17408), (16384, 5120), (96, 5120), (248320, 5120),
    (24576, 4096), (4096, 12288), (6144, 4096), (4096, 4096), (1536, 1536), (17920, 1536), (1536, 8960),
)  # fmt: skip
#: Numbers of tokens: up to 64 those of `launch`, then `wide`, then decode and the library.
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
#: Most tokens the nested 8-bit view is timed with: a draft or a verify pass.
NESTED_TOKENS = 16
#: Names of the BF16 candidates.
BF16 = ("linear", "gemv")


@dataclass(frozen=True)
class Timing:
    """One measured cell: median and spread (between quartiles) in microseconds a call, bytes of weights it reads."""

    name: str
    n: int
    k: int
    tokens: int
    microseconds: float
    spread: float
    stream_bytes: int

    @property
    def terabytes_per_second(self) -> float:
        """Weight bytes over time."""
        return self.stream_bytes / self.microseconds / 1e6


@dataclass
class Candidate:
    """Something to time: `call(copy)` runs it on one of `copies` equal weights of `stream_bytes` bytes each."""

    name: str
    call: Callable[[int], object]
    copies: int
    stream_bytes: int


def normal_weight(n: int, k: int, escapes: float = 0.0) -> tuple[PackedWeight, torch.Tensor]:
    """Return a packed weight and its BF16 original: normal rows of different scale, as models have.

    Large weights repeat a block of rows, which no kernel can tell. `escapes` is the share of weights set far outside
    their row's window.
    """
    packed_tiling = choose(n, k)
    whole = packed_tiling.tile_rows
    blocks = [d for d in range(1, n + 1) if n % d == 0 and n // d * k <= 1 << 28 and (n // d % whole == 0 or d == 1)]
    times = blocks[0] if n * k > 1 << 28 and blocks else 1
    torch.manual_seed(n + k)
    rows = n // times
    scale = 0.02 * torch.exp(0.3 * torch.randn(rows, 1, device="cuda"))
    weight = (torch.randn(rows, k, device="cuda") * scale).bfloat16()
    if escapes:
        weight[torch.rand(rows, k, device="cuda") < escapes] = 1e4
    encoded = encode(weight)
    return repeat(pack(encoded, packed_tiling), times), decode(encoded).repeat(times, 1)


def repeat(packed: PackedWeight, times: int) -> PackedWeight:
    """Return the weight stacked `times` times along N (its rows fill whole tiles); `times` 1 copies it."""
    names = ("a", "b", "base", "escape", "escape8")
    return replace(packed, n=packed.n * times, **{name: getattr(packed, name).repeat(times) for name in names})


def copies_of(stream_bytes: int) -> int:
    """Return how many copies of a weight make its reads cold."""
    return max(2, -(-ROTATED // stream_bytes))


def check_cold(candidate: Candidate, cache_bytes: int) -> None:
    """Refuse to time a candidate whose weights a cache could hold from one round to the next.

    Raises:
        W12Error: all copies together do not exceed twice the cache.
    """
    read = candidate.copies * candidate.stream_bytes
    if read <= 2 * cache_bytes:
        raise W12Error(
            f"{candidate.name} would be timed on {read} bytes of weights, the L2 cache holds {cache_bytes}",
            fix="raise bench.ROTATED",
        )


def copy_ceiling() -> float:
    """Return terabytes a second of a large device-to-device copy, bytes read plus bytes written."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    times = []
    for _ in range(8):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return 2 * source.numel() / statistics.median(times[2:]) / 1e9


def bench(
    shapes: Sequence[tuple[int, int]], tokens: Sequence[int] = TOKENS, escapes: float = 0.0
) -> Iterator[list[Timing]]:
    """Yield the timings of each shape and number of tokens.

    Candidates: `linear` (F.linear), `gemv` (SGLang's, where SGLang uses it and its source is there), `w12` and, up to
    16 tokens, `nested8`; `w12-serial` is W12 without overlapping launches, `w12-decode` decode and the library where
    `w12` is fused.
    """
    for n, k in shapes:
        packed, weight = normal_weight(n, k, escapes)
        weights = [weight, *(weight.clone() for _ in range(copies_of(2 * n * k) - 1))]
        copies = [packed, *(repeat(packed, 1) for _ in range(copies_of(packed.stream_bytes(Decoder.NESTED8)) - 1))]
        torch.cuda.synchronize()  # copies must be complete before a kernel may prefetch them
        prepare_layer(packed)
        for m in tokens:
            x = torch.randn(m, k, device="cuda").bfloat16()
            yield time_candidates(list(_candidates(weights, copies, x)), n, k, m)
        del packed, weight, weights, copies
        torch.cuda.empty_cache()


def _candidates(weights: list[torch.Tensor], copies: list[PackedWeight], x: torch.Tensor) -> Iterator[Candidate]:
    (n, k), packed, size = weights[0].shape, copies[0], weights[0].numel() * 2
    yield Candidate("linear", lambda i: functional.linear(x, weights[i]), len(weights), size)
    out = x.new_empty((x.shape[0], n))
    if x.shape[0] == 1 and gemv.used(n, k) and gemv.source() is not None:
        run = gemv.load(n, k, x.device)
        yield Candidate("gemv", lambda i: run(x, weights[i], out), len(weights), size)
    if x.shape[0] > MAX_TOKENS:
        decode_weight(packed)
        yield Candidate("w12", lambda i: w12_linear(x, copies[i], out=out), len(copies), size)
        if wide.takes(x, packed, out):
            yield Candidate("w12-decode", lambda i: _by_slices(x, copies[i], False, out), len(copies), size)
        return
    for name, nested, overlap in (("w12", False, True), ("w12-serial", False, False), ("nested8", True, True)):
        if nested and x.shape[0] > NESTED_TOKENS:
            continue
        decoder = Decoder.NESTED8 if nested else packed.decoder
        prepare(packed, (decoder,), x.shape[0])
        yield Candidate(name, _call(x, copies, out, nested, overlap), len(copies), packed.stream_bytes(decoder))


def _call(
    x: torch.Tensor, copies: Sequence[PackedWeight], out: torch.Tensor, nested: bool, overlap: bool
) -> Callable[[int], object]:
    return lambda i: w12_gemm(x, copies[i], nested=nested, out=out, overlap=overlap)


def time_candidates(candidates: Sequence[Candidate], n: int, k: int, tokens: int) -> list[Timing]:
    """Capture each candidate into a graph and replay the graphs in turn."""
    stream = torch.cuda.Stream()
    graphs, launches = [], []
    for c in candidates:
        check_cold(c, torch.cuda.get_device_properties().L2_cache_size)
    with torch.cuda.stream(stream):
        for c in candidates:
            c.call(0)
            expected = max(c.stream_bytes / 3.5e6, n * k * tokens / 3.5e8)
            rounds = max(1, round(GRAPH_US / expected / c.copies))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(rounds):
                    for i in range(c.copies):
                        c.call(i)
            graphs.append(graph)
            launches.append(rounds * c.copies)
        times = _replay(graphs, stream)
    result = []
    for c, count, each in zip(candidates, launches, times, strict=True):
        each = sorted(1e3 * t / count for t in each)
        low, high = each[len(each) // 4], each[3 * len(each) // 4]
        result.append(Timing(c.name, n, k, tokens, statistics.median(each), high - low, c.stream_bytes))
    return result


def _replay(graphs: Iterable[torch.cuda.CUDAGraph], stream: torch.cuda.Stream) -> list[list[float]]:
    graphs = list(graphs)
    events = [[(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPLAYS)]
              for _ in graphs]  # fmt: skip
    for graph in graphs:
        graph.replay()
    for turn in range(REPLAYS):
        for graph, pairs in zip(graphs, events, strict=True):
            pairs[turn][0].record(stream)
            graph.replay()
            pairs[turn][1].record(stream)
    stream.synchronize()
    return [[begin.elapsed_time(end) for begin, end in pairs] for pairs in events]
