"""Times the kernel against `F.linear` as a server runs them: CUDA graph, cold weights, interleaved, medians.

    python -m specpilot_sglang.kernels.w12_gemm.bench OUT.json [N,K ...]

Every graph walks over enough copies of its weight that they exceed `ROTATED` bytes, several times the L2 of any
GPU it runs on; otherwise a 50 MB weight is read from the cache and every ratio is wrong.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as functional

from specpilot_sglang.kernels.w12_gemm.launch import prepare, w12_gemm
from specpilot_sglang.kernels.w12_gemm.pack import PackedWeight, pack
from specpilot_sglang.kernels.w12_gemm.tiling import Decoder, Tiling
from specpilot_sglang.w12.codec_torch import decode, encode

#: Bytes of weights a graph reads before it comes back to the first copy (twice the 60 MB L2 of an H200, and more).
ROTATED = 300 << 20
#: Microseconds a graph aims to run, and how often each is replayed.
GRAPH_US, REPLAYS = 1500.0, 15
#: Weights of Qwen3.8-27B, of an 8B and of a 1.5B model, [N, K].
SHAPES = (
    (14336, 5120), (5120, 6144), (34816, 5120), (5120, 17408), (16384, 5120), (96, 5120), (248320, 5120),
    (24576, 4096), (4096, 12288), (6144, 4096), (4096, 4096), (1536, 1536), (17920, 1536), (1536, 8960),
)  # fmt: skip
TOKENS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Timing:
    """One measured cell: medians in microseconds a call, and the bytes of weights it reads."""

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


def gaussian_weight(n: int, k: int, tiling: Tiling) -> tuple[PackedWeight, torch.Tensor]:
    """Return a Gaussian weight packed and in BF16; large ones repeat a block of rows, which no kernel can tell."""
    rows = max(d for d in range(1, n + 1) if n % d == 0 and d <= max(8192, n // 1024) and (d % 256 == 0 or d == n))
    torch.manual_seed(n + k)
    encoded = encode((torch.randn(rows, k, device="cuda") * 0.02).bfloat16())
    return repeat(pack(encoded, tiling), n // rows), decode(encoded).repeat(n // rows, 1)


def repeat(packed: PackedWeight, times: int) -> PackedWeight:
    """Return the weight stacked `times` times along N (its rows fill whole tiles); `times` 1 copies it."""
    names = ("a", "b", "base", "escape", "escape8")
    return replace(packed, n=packed.n * times, **{name: getattr(packed, name).repeat(times) for name in names})


def copies_of(stream_bytes: int) -> int:
    """Return how many copies of a weight make its reads cold."""
    return max(2, -(-ROTATED // stream_bytes))


def linear_candidate(weight: torch.Tensor, x: torch.Tensor) -> Candidate:
    """Return `F.linear` on copies of a BF16 weight."""
    size = weight.numel() * 2
    weights = [weight, *(weight.clone() for _ in range(copies_of(size) - 1))]
    return Candidate("linear", lambda i: functional.linear(x, weights[i]), len(weights), size)


def w12_candidate(name: str, weight: PackedWeight, x: torch.Tensor, *, nested: bool, overlap: bool) -> Candidate:
    """Return the kernel on copies of a packed weight."""
    decoder = Decoder.NESTED8 if nested else weight.decoder
    size = weight.stream_bytes(decoder)
    weights = [weight, *(repeat(weight, 1) for _ in range(copies_of(size) - 1))]
    out = x.new_empty((x.shape[0], weight.n))
    torch.cuda.synchronize()  # copies must be complete before a kernel may prefetch them
    prepare(weight, (decoder,), x.shape[0])
    return Candidate(
        name, lambda i: w12_gemm(x, weights[i], nested=nested, out=out, overlap=overlap), len(weights), size
    )


def time_candidates(candidates: Sequence[Candidate], n: int, k: int, tokens: int) -> list[Timing]:
    """Capture each candidate into a graph and replay the graphs in turn."""
    stream = torch.cuda.Stream()
    graphs, launches = [], []
    with torch.cuda.stream(stream):
        for c in candidates:
            c.call(0)
            rounds = max(1, round(GRAPH_US / (c.stream_bytes / 3.5e6) / c.copies))
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


def bench(shapes: Sequence[tuple[int, int]], tiling: Tiling, tokens: Sequence[int] = TOKENS) -> list[Timing]:
    """Return timings of `F.linear`, W12 and the nested view, with and without overlapping launches."""
    result = []
    for n, k in shapes:
        packed, weight = gaussian_weight(n, k, tiling)
        for m in tokens:
            x = torch.randn(m, k, device="cuda").bfloat16()
            kinds = [(f"{what}{'' if overlap else '-serial'}", what == "nested8", overlap)
                     for what in ("w12", "nested8") for overlap in (True, False)]  # fmt: skip
            candidates = [linear_candidate(weight, x)]
            candidates += [w12_candidate(name, packed, x, nested=nested, overlap=o) for name, nested, o in kinds]
            result += time_candidates(candidates, n, k, m)
    return result


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and write its rows as JSON."""
    shapes = [tuple(int(v) for v in text.split(",")) for text in arguments[1:]] or list(SHAPES)
    timings = bench([(n, k) for n, k in shapes], Tiling())
    rows = [{**t.__dict__, "terabytes_per_second": t.terabytes_per_second} for t in timings]
    report = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    Path(arguments[0]).write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
