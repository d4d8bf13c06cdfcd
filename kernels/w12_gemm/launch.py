"""The GEMM on torch tensors: validation, choice of the variant, workspace."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import torch

from specpilot_sglang.kernels.w12_gemm import driver
from specpilot_sglang.kernels.w12_gemm.build import GEMM, architecture, gemm_options, uses_wgmma
from specpilot_sglang.kernels.w12_gemm.pack import PackedWeight
from specpilot_sglang.kernels.w12_gemm.tiling import (
    MAX_TOKENS,
    UNIT_BYTES,
    UNIT_COLUMNS,
    Decoder,
    Tiling,
    fitting_shared,
    grid,
)

#: Token eights that have a kernel; a call takes the smallest that holds its tokens.
TOKEN_EIGHTS = (1, 2, 4, 8)
#: Most bytes of a CTA's weights that are called into L2 while the kernel before it ends, their least inverse share of
#: all its weights (more would take memory from that kernel), and most chunks of them.
AHEAD, AHEAD_SHARE, MOST_AHEAD = 48 << 10, 5, 16


class _Params(ctypes.Structure):
    """`Params` of w12_gemm.cu, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "escape", "list", "base", "y", "partial", "counter")),
        *((name, ctypes.c_void_p) for name in ("mark", "mark_before")),
        ("y_stride", ctypes.c_longlong),
        *((name, ctypes.c_int) for name in ("tokens", "rows", "ctas", "chunks", "share", "extra")),
        *((name, ctypes.c_int) for name in ("stages", "list_bytes", "linger", "ahead")),
    )


@dataclass(frozen=True)
class Variant:
    """A loaded kernel with its stages and threads."""

    function: driver.Function
    stages: int
    threads: int


@dataclass
class Workspace:
    """Partial tiles and arrival counters of one (device, stream); launches on one stream follow each other.

    `marks` are two words that launches use in turn, `turn` the next one's.
    """

    partial: torch.Tensor
    counter: torch.Tensor
    marks: torch.Tensor
    turn: int = 0


@dataclass
class _State:
    """Loaded variants, workspaces, and outgrown workspaces that captured graphs may still use."""

    variants: dict[tuple[int, Tiling, Decoder, int], Variant] = field(default_factory=dict)
    workspaces: dict[tuple[int, int], Workspace] = field(default_factory=dict)
    outgrown: list[Workspace] = field(default_factory=list)


_STATE = _State()


def token_eights(tokens: int) -> int:
    """Return the width of the kernel that takes `tokens` tokens, in eights.

    Raises:
        ValueError: no kernel is that wide.
    """
    for eights in TOKEN_EIGHTS:
        if tokens <= 8 * eights:
            return eights
    raise ValueError(f"{tokens} tokens, the W12 kernel takes at most {MAX_TOKENS}")


def prepare(weight: PackedWeight, decoders: tuple[Decoder, ...] = (), max_tokens: int = MAX_TOKENS) -> None:
    """Compile, load and allocate what calls with this weight on the current stream need.

    Call it at load time, and again under a stream that captures graphs: calls themselves never compile
    or allocate workspace inside a capture.
    """
    widest = token_eights(max_tokens)
    for decoder in decoders or (weight.decoder,):
        for eights in TOKEN_EIGHTS:
            if eights <= widest:
                _variant(weight, decoder, eights)
    _workspace(weight, widest)


def w12_gemm(
    x: torch.Tensor,
    weight: PackedWeight,
    *,
    nested: bool = False,
    out: torch.Tensor | None = None,
    overlap: bool = True,
) -> torch.Tensor:
    """Return `x @ weight.T`; see `ref.w12_gemm_ref`, and `ref.w12_gemm_nested8_ref` with `nested`.

    Args:
        x: [M, K] bfloat16, M from 1 to 64, columns contiguous, rows at multiples of 16 bytes.
        weight: [N, K] on the same device.
        nested: read plane A only.
        out: [M, N] bfloat16 with contiguous columns; allocated when absent.
        overlap: let the kernel prefetch weights while the previous one ends (programmatic dependent launch).

    Raises:
        ValueError: a shape, dtype, device or alignment the kernel does not take.
        KernelBuildError: the call would compile or allocate inside a CUDA graph capture, or CUDA reports an error.
    """
    decoder = Decoder.NESTED8 if nested else weight.decoder
    _check_input(x, weight, decoder)
    tokens = x.shape[0]
    y = x.new_empty((tokens, weight.n)) if out is None else out
    if y.shape != (tokens, weight.n) or y.dtype != torch.bfloat16 or y.stride(1) != 1 or y.device != x.device:
        raise ValueError(f"out must be bfloat16 [{tokens}, {weight.n}] on {x.device} with contiguous columns")
    if tokens == 0 or weight.n == 0:
        return y
    eights = token_eights(tokens)
    variant, ctas = _variant(weight, decoder, eights), _ctas(weight)
    params = _params(weight, y, decoder, variant.stages, ctas)
    tensor_map = driver.describe(x, 8 * eights, UNIT_COLUMNS)
    addresses = [ctypes.addressof(params), int(tensor_map.getPtr())]
    if overlap:  # see linger() in w12_gemm.cu
        ctas = max(ctas, torch.cuda.get_device_properties(x.device).multi_processor_count)
    driver.launch(variant.function, ctas, variant.threads, addresses, x.device, overlap=overlap)
    return y


def _params(weight: PackedWeight, y: torch.Tensor, decoder: Decoder, stages: int, ctas: int) -> _Params:
    tiling, space = weight.tiling, _workspace(weight, token_eights(y.shape[0]))
    nested = decoder == Decoder.NESTED8
    words, lists = (weight.escape8, weight.escapes8) if nested else (weight.escape, weight.escapes)
    tensors = (weight.a, weight.b, words, lists, weight.base, y, space.partial, space.counter)
    marks = (space.marks.data_ptr() + 4 * space.turn, space.marks.data_ptr() + 4 * (1 - space.turn))
    space.turn = 1 - space.turn
    pointers = (*(t.data_ptr() for t in tensors), *marks)
    chunks = tiling.chunks(weight.k)
    numbers = (*y.shape, ctas, chunks, *divmod(tiling.tiles(weight.n) * chunks, ctas), stages, 4 * lists.numel())
    ahead_bytes = min(AHEAD, weight.stream_bytes(decoder) // (ctas * AHEAD_SHARE))
    ahead = min(MOST_AHEAD, ahead_bytes // (tiling.rows * tiling.wk * UNIT_BYTES[decoder]))
    return _Params(*pointers, y.stride(0), *numbers, weight.linger_ns, ahead)


def _check_input(x: torch.Tensor, weight: PackedWeight, decoder: Decoder) -> None:
    if x.dim() != 2 or x.shape[1] != weight.k or x.dtype != torch.bfloat16:
        raise ValueError(f"x must be bfloat16 [M, {weight.k}], not {x.dtype} of shape {tuple(x.shape)}")
    if x.device != weight.a.device or not x.is_cuda:
        raise ValueError(f"x is on {x.device}, the weight on {weight.a.device}; both must be on one CUDA device")
    if x.stride(1) != 1 or x.data_ptr() % 16 or (x.shape[0] > 1 and x.stride(0) % 8):
        raise ValueError("rows of x must start at multiples of 16 bytes and have contiguous columns")
    if decoder == Decoder.NESTED8 and weight.decoder == Decoder.BF16:
        raise ValueError("a BF16 weight has no nested 8-bit view")


def _ctas(weight: PackedWeight) -> int:
    count = torch.cuda.get_device_properties(weight.a.device).multi_processor_count
    return grid(weight.tiling, weight.n, weight.k, count)


def _variant(weight: PackedWeight, decoder: Decoder, eights: int) -> Variant:
    device, tiling = weight.a.device, weight.tiling
    key = (_index(device), tiling, decoder, eights)
    if key not in _STATE.variants:
        properties = torch.cuda.get_device_properties(device)
        arch = architecture((properties.major, properties.minor))
        shared = fitting_shared(
            tiling,
            decoder,
            eights,
            properties.shared_memory_per_multiprocessor - driver.RESERVED_SHARED * tiling.parts(eights),
            properties.shared_memory_per_block_optin,
        )
        function = driver.load(GEMM, "w12_gemm", gemm_options(tiling, decoder, eights, arch), device, shared.total)
        threads = tiling.threads(eights, wgmma=uses_wgmma(tiling, eights, arch))
        _STATE.variants[key] = Variant(function, shared.stages, threads)
    return _STATE.variants[key]


def _workspace(weight: PackedWeight, eights: int) -> Workspace:
    device, tiling = weight.a.device, weight.tiling
    key = (_index(device), torch.cuda.current_stream(device).cuda_stream)
    floats = 2 * _ctas(weight) * tiling.tile_rows * 8 * eights
    counters = tiling.tiles(weight.n) * tiling.rows
    space = _STATE.workspaces.get(key)
    if space is None or space.partial.numel() < floats or space.counter.numel() < counters:
        driver.refuse_in_capture("allocate workspace")
        if space is not None:
            _STATE.outgrown.append(space)
            floats, counters = max(floats, space.partial.numel()), max(counters, space.counter.numel())
        partial = torch.empty(floats, dtype=torch.float32, device=device)
        marks = torch.zeros(2, dtype=torch.int32, device=device)
        space = Workspace(partial, torch.zeros(counters, dtype=torch.int32, device=device), marks)
        _STATE.workspaces[key] = space
    return space


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
