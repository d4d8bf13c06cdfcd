"""Many tokens (prefill): the kernel that decodes inside the product, its variants, workspace and launch.

The same call repeats bit for bit. But unlike with `launch.w12_gemm` a token's bits depend on the number of tokens and
on its place among them: they decide in which tile it is, and at which columns workers share that tile's sum.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from specpilot_sglang.kernels.w12_gemm import driver
from specpilot_sglang.kernels.w12_gemm.build import WIDE
from specpilot_sglang.kernels.w12_gemm.pack import PackedWeight
from specpilot_sglang.kernels.w12_gemm.tiling import UNIT_COLUMNS, UNIT_ROWS, Decoder

#: Rows of the weight in a tile, tokens of a box of x and of y, threads of a CTA, bytes of shared memory it may have.
TILE_ROWS, _HALF, _THREADS, _SHARED = 128, 128, 384, 232448
#: Most tokens of a call and weights of the smallest matrix for which it was measured to beat decode and the library
#: (docs/measured.md).
MOST_TOKENS, SMALLEST = 4096, 1 << 22
#: Columns, in units of 64, that a worker gets at least.
_MIN_COLUMNS = 8
#: Columns that a worker multiplies in the time it takes to leave and to add parts of tiles that it shares, and to add
#: one part; most waves of whole tiles that are dealt out instead: in more of them it pays that workers are in different
#: places.
SHARING, _PART, MOST_WAVES = 16, 3, 4
#: A column of a tile of 128 tokens takes so much of the time of one of 256 tokens; most tokens of a call for which both
#: are considered.
_HALF_TILE, _MOST_HALF = 0.68, 512
#: Most tokens, and waves of tiles, of a launch that begins while the previous one ends; larger ones lose by it.
_OVERLAPPED_TOKENS, _OVERLAPPED_WAVES = 512, 2


@dataclass(frozen=True)
class Shape:
    """Compile-time shape of the kernel: tokens of a tile, 128 or 256."""

    tokens: int = 256

    def stage(self, decoder: Decoder) -> int:
        """Return the bytes of a stage: x and eight units."""
        unit = {Decoder.BF16: 2048, Decoder.NESTED8: 1024}.get(decoder, 1536)
        return 128 * self.tokens + 8 * unit

    def stages(self, decoder: Decoder) -> int:
        """Return how many stages fit beside the two warpgroups' results."""
        return min(10, (_SHARED - 2 * 128 * _HALF - 128) // self.stage(decoder))

    def shared(self, decoder: Decoder) -> int:
        """Return the bytes of shared memory of a CTA."""
        return self.stages(decoder) * (self.stage(decoder) + 16) + 2 * 128 * _HALF

    def options(self, decoder: Decoder) -> list[str]:
        """Return the compiler options that select the variant."""
        values = {"DECODER": int(decoder), "TOKENS": self.tokens, "STAGES": self.stages(decoder)}
        return [f"-D{name}={value}" for name, value in values.items()]


class _Params(ctypes.Structure):
    """`Params` of w12_wide.cu, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "escape", "list", "base", "partial", "ready")),
        *((name, ctypes.c_int) for name in ("tokens", "rows", "columns", "units")),
        *((name, ctypes.c_int) for name in ("tiling_rows", "log_wk", "chunks", "words", "row_tiles", "token_tiles")),
        *((name, ctypes.c_int) for name in ("workers", "shared_tiles", "share", "extra")),
    )


@dataclass
class _State:
    """Loaded kernels; partial tiles and flags of each (device, stream), launches on one stream follow each other."""

    functions: dict[tuple[int, Decoder, Shape], driver.Function] = field(default_factory=dict)
    workspaces: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)


_STATE = _State()


@dataclass(frozen=True)
class Work:
    """How tiles are dealt out to workers, one CTA each.

    Attributes:
        workers: of them.
        shared_tiles: tiles whose columns are dealt out in equal shares; all others go out whole.
        share, extra: columns of a share, and how many workers have one more.
    """

    workers: int
    shared_tiles: int
    share: int
    extra: int


def deal(tiles: int, columns: int, workers: int) -> Work:
    """Deal out tiles of `columns` units each to at most `workers`, in the way that takes least time by `_ways`."""
    return min(_ways(tiles, columns, workers), key=lambda way: way[0])[1]


def _ways(tiles: int, columns: int, workers: int) -> Iterator[tuple[float, Work]]:
    """Yield the ways to deal out tiles, each with the columns that a worker multiplies in the time it takes.

    Whole tiles in equal waves; each tile to several workers in equal parts; or waves of one whole tile a worker, as
    long as at least one more wave follows, and the rest in equal shares, whatever tiles they begin and end in.
    """
    waves = -(-tiles // workers)
    if tiles % workers == 0 or waves <= MOST_WAVES:
        yield waves * columns, Work(-(-tiles // waves), 0, 0, 0)
    if tiles % workers == 0:
        return
    for parts in range(2, workers // tiles + 1):
        if columns % parts == 0:
            yield columns // parts + _PART * (parts - 1), Work(tiles * parts, tiles, columns // parts, 0)
    shared = tiles - max(0, tiles // workers - 1) * workers
    if tiles < workers:
        workers = max(1, min(workers, tiles * columns // _MIN_COLUMNS))
    cost = tiles * columns // workers + SHARING + _PART * max(0, workers // tiles - 2)
    yield cost, Work(workers, shared, *divmod(shared * columns, workers))


def _shape(rows: int, tokens: int, columns: int, workers: int) -> Shape:
    """Return the faster variant for a product, as far as `_ways` can tell."""

    def cost(width: int) -> float:
        tiles = -(-rows // TILE_ROWS) * -(-tokens // width)
        return min(way[0] for way in _ways(tiles, columns, workers))

    if tokens <= _HALF or (tokens <= _MOST_HALF and _HALF_TILE * cost(_HALF) < cost(2 * _HALF)):
        return Shape(_HALF)
    return Shape(2 * _HALF)


def takes(x: torch.Tensor, weight: PackedWeight, out: torch.Tensor) -> bool:
    """Tell whether `w12_wide` serves a call: on Hopper, where it wins, if the copy engine can address x and y."""
    if x.shape[0] > MOST_TOKENS or weight.n * weight.k < SMALLEST:
        return False
    if torch.cuda.get_device_capability(x.device) != (9, 0):
        return False
    aligned = all(t.data_ptr() % 16 == 0 and t.stride(0) % 8 == 0 and t.stride(1) == 1 for t in (x, out))
    return aligned and x.dtype == torch.bfloat16 and x.shape[1] == weight.k


def prepare(device: torch.device, decoder: Decoder) -> None:
    """Compile, load and allocate what `w12_wide` needs on the current stream."""
    if torch.cuda.get_device_capability(device) == (9, 0):
        for tokens in (128, 256):
            _function(device, decoder, Shape(tokens))
        _workspace(device)


def w12_wide(
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor,
    *,
    nested: bool = False,
    shape: Shape | None = None,
    overlap: bool | None = None,
) -> torch.Tensor:
    """Write `x @ weight.T` into `out` and return it.

    Args:
        x: [M, K] bfloat16, columns contiguous, rows at multiples of 16 bytes.
        weight: [N, K] on the same device.
        out: [M, N] bfloat16, as `x`.
        nested: read plane A only.
        shape: variant, by the size of the product if not given.
        overlap: let workers start, and read weights, while the previous kernel ends (programmatic dependent launch);
            by the size of the product if not given.

    Raises:
        KernelBuildError: the call would compile or allocate inside a CUDA graph capture, or CUDA reports an error.
    """
    decoder = Decoder.NESTED8 if nested else weight.decoder
    tiling, tokens = weight.tiling, x.shape[0]
    words, lists = (weight.escape8, weight.escapes8) if nested else (weight.escape, weight.escapes)
    columns, units = weight.k // UNIT_COLUMNS, tiling.tiles(weight.n) * tiling.rows
    multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
    shape = shape or _shape(weight.n, tokens, columns, multiprocessors)
    function, (partial, ready) = _function(x.device, decoder, shape), _workspace(x.device)
    row_tiles, token_tiles = -(-weight.n // TILE_ROWS), -(-tokens // shape.tokens)
    work = deal(row_tiles * token_tiles, columns, multiprocessors)
    if overlap is None:
        overlap = tokens <= _OVERLAPPED_TOKENS and row_tiles * token_tiles <= _OVERLAPPED_WAVES * multiprocessors
    pointers = (weight.a, weight.b, words, lists, weight.base, partial, ready)
    layout = (tiling.rows, tiling.wk.bit_length() - 1, tiling.chunks(weight.k), tiling.words)
    params = _Params(
        *(t.data_ptr() for t in pointers), tokens, weight.n, columns, units, *layout, row_tiles, token_tiles,
        work.workers, work.shared_tiles, work.share, work.extra,
    )  # fmt: skip
    map_x = driver.describe(x, _HALF, UNIT_COLUMNS)
    map_y = driver.describe(out, _HALF, 4 * UNIT_ROWS)
    addresses = [ctypes.addressof(params), int(map_x.getPtr()), int(map_y.getPtr())]
    driver.launch(function, work.workers, _THREADS, addresses, x.device, overlap=overlap)
    return out


def _function(device: torch.device, decoder: Decoder, shape: Shape) -> driver.Function:
    key = (_index(device), decoder, shape)
    if key not in _STATE.functions:
        _STATE.functions[key] = driver.load(WIDE, "w12_wide", shape.options(decoder), device, shape.shared(decoder))
    return _STATE.functions[key]


def _workspace(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    key = (_index(device), torch.cuda.current_stream(device).cuda_stream)
    if key not in _STATE.workspaces:
        driver.refuse_in_capture("allocate workspace")
        groups = 2 * torch.cuda.get_device_properties(device).multi_processor_count
        partial = torch.empty(groups * 256 * 64, dtype=torch.float32, device=device)
        _STATE.workspaces[key] = partial, torch.zeros(groups, dtype=torch.int32, device=device)
    return _STATE.workspaces[key]


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
