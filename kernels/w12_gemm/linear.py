"""A linear layer on a packed weight for any number of tokens: two fused kernels, or decode and the library's GEMM.

What a server needs: `unsupported` and `pack_layer` at load, `prepare_layer` before CUDA graphs are captured,
`w12_linear` for each call, `refresh` when the weights change.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from specpilot_sglang.errors import W12Error
from specpilot_sglang.kernels.w12_gemm import driver, wide
from specpilot_sglang.kernels.w12_gemm.build import DECODE, KernelBuildError, architecture, decode_options
from specpilot_sglang.kernels.w12_gemm.launch import prepare, w12_gemm
from specpilot_sglang.kernels.w12_gemm.pack import PackedWeight, pack
from specpilot_sglang.kernels.w12_gemm.plan import choose
from specpilot_sglang.kernels.w12_gemm.tiling import MAX_TOKENS, UNIT_COLUMNS, Decoder
from specpilot_sglang.w12.codec_torch import W12Tensor

#: Warps of a CTA of the decode kernel, and its CTAs on a multiprocessor.
_WARPS, _CTAS_PER_SM = 8, 4
#: Bytes of BF16 decoded at a time: one slice for every layer of a 27B model but its LM head.
SLICE = 3 << 27


class _Params(ctypes.Structure):
    """`DecodeParams` of w12_decode.cu, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "escape", "list", "base", "out")),
        *((name, ctypes.c_int) for name in ("rows", "columns", "items", "groups", "chunks", "row_units", "wk")),
    )


_SCRATCH: dict[tuple[torch.device, int], torch.Tensor] = {}
_OUTGROWN: list[torch.Tensor] = []
_CAPTURED: set[tuple[torch.device, int]] = set()
_FUNCTIONS: dict[tuple[torch.device, Decoder], driver.Function] = {}


def unsupported(n: int, k: int, device: torch.device) -> str:
    """Return why the fused kernel does not take a weight [n, k] on a device; empty when it does."""
    if device.type != "cuda":
        return f"no CUDA device, but {device.type}"
    if k % UNIT_COLUMNS or not k or not n:
        return f"K is {k}, not a multiple of {UNIT_COLUMNS}"
    try:
        architecture(torch.cuda.get_device_capability(device))
    except KernelBuildError as exc:
        return exc.what
    return ""


def pack_layer(weight: W12Tensor) -> PackedWeight:
    """Return an encoded weight in the kernel's order, with room for a third more escapes (`refresh`)."""
    return pack(weight, choose(weight.n, weight.k), spare=True)


def prepare_layer(weight: PackedWeight, *, nested: bool = False) -> None:
    """Compile, load and allocate what calls with this weight on the current stream need; see `launch.prepare`."""
    decoders = (weight.decoder, Decoder.NESTED8) if nested else (weight.decoder,)
    prepare(weight, decoders)
    for decoder in decoders:
        _function(weight.a.device, decoder)
        wide.prepare(weight.a.device, decoder)
    _scratch(weight, _slice_rows(weight, SLICE))


def loaded() -> dict[str, Any]:
    """Return what this process has loaded, of JSON values only: architecture, variants and their cubins' hashes."""
    return {"arch": architecture(torch.cuda.get_device_capability()), "variants": list(driver.LOADED)}


def refresh(weight: PackedWeight, new: W12Tensor) -> None:
    """Replace the weight in place: every pointer stays, so captured CUDA graphs go on with the new weight.

    Raises:
        W12Error: another shape, another decoder (zeros), or more escapes than there is room for.
    """
    packed = pack(new, weight.tiling)
    if (packed.n, packed.k, packed.decoder) != (weight.n, weight.k, weight.decoder):
        raise W12Error("the new weight needs another kernel than the old one", fix="restart the server with it")
    for name in ("escapes", "escapes8"):
        size, room = getattr(packed, name).numel(), getattr(weight, name).numel()
        if size > room:
            raise W12Error(
                f"{size} escape words, there is room for {room}", fix="restart the server with the new weight"
            )
    for name in ("a", "b", "base", "escape", "escapes", "escape8", "escapes8"):
        source = getattr(packed, name)
        getattr(weight, name)[: source.numel()].copy_(source)
    torch.cuda.current_stream(weight.a.device).synchronize()


def w12_linear(
    x: torch.Tensor,
    weight: PackedWeight,
    *,
    nested: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `x @ weight.T` for x [..., K].

    Up to 64 rows by `launch.w12_gemm`, whose rows do not depend on each other (level L3); up to `wide.MOST_TOKENS` by
    `wide.w12_wide`, more, or a small matrix, by decode and the library. These round sums differently, and in the last
    two a row's bits depend on how many rows there are: what a prompt computes depends on what is prefilled with it.
    """
    flat = x.reshape(-1, x.shape[-1])
    if flat.shape[0] <= MAX_TOKENS:
        y = w12_gemm(flat, weight, nested=nested, out=out)
    else:
        y = flat.new_empty((flat.shape[0], weight.n)) if out is None else out
        if wide.takes(flat, weight, y):
            wide.w12_wide(flat, weight, y, nested=nested)
        else:
            _by_slices(flat, weight, nested, y)
    return y.view(*x.shape[:-1], weight.n)


def _by_slices(
    x: torch.Tensor, weight: PackedWeight, nested: bool, y: torch.Tensor, slice_bytes: int = SLICE
) -> torch.Tensor:
    """Decode and multiply slice by slice along N into `y`, so that the decoded weight needs little memory."""
    step = _slice_rows(weight, slice_bytes)
    scratch = _scratch(weight, step)
    if torch.cuda.is_current_stream_capturing():
        _CAPTURED.add((x.device, torch.cuda.current_stream(x.device).cuda_stream))
    for begin in range(0, weight.n, step):
        end = min(begin + step, weight.n)
        part = decode_weight(weight, nested=nested, rows=(begin, end), out=scratch[: end - begin])
        torch.mm(x, part.t(), out=y[:, begin:end])
    return y


def _slice_rows(weight: PackedWeight, slice_bytes: int) -> int:
    """Return the rows decoded at a time: whole tiles, about equal slices."""
    rows = weight.tiling.tile_rows
    slices = -(-2 * weight.n * weight.k // slice_bytes)
    return -(-weight.n // (slices * rows)) * rows


def _scratch(weight: PackedWeight, rows: int) -> torch.Tensor:
    """Return memory for `rows` decoded rows, one block for all layers on the current stream."""
    device = weight.a.device
    key = (device, torch.cuda.current_stream(device).cuda_stream)
    size = rows * weight.k
    if key not in _SCRATCH or _SCRATCH[key].numel() < size:
        driver.refuse_in_capture("allocate memory for decoded weights")
        if key in _CAPTURED:
            _OUTGROWN.append(_SCRATCH[key])  # graphs still use it
        _SCRATCH[key] = torch.empty(size, dtype=torch.bfloat16, device=device)
    return _SCRATCH[key][:size].view(rows, weight.k)


def decode_weight(
    weight: PackedWeight,
    *,
    nested: bool = False,
    rows: tuple[int, int] | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return rows of the [N, K] bfloat16 weight (or its 8-bit view), bit-exact.

    Args:
        weight: W12.
        nested: the 8-bit view.
        rows: begin and end, all by default; begin fills whole tiles.
        out: contiguous [rows, K] on the weight's device; new memory by default.

    Raises:
        ValueError: the weight is packed BF16, which has no decode kernel, or rows begin inside a tile.
        KernelBuildError: not loaded yet inside a CUDA graph capture, or CUDA reports an error.
    """
    if weight.decoder == Decoder.BF16:
        raise ValueError("a packed BF16 weight is a test's reference; keep the original to have it row-major")
    tiling, device = weight.tiling, weight.a.device
    begin, end = rows or (0, weight.n)
    if begin % tiling.tile_rows:
        raise ValueError(f"rows begin at {begin}, which is no multiple of the tile's {tiling.tile_rows}")
    out = torch.empty((end - begin, weight.k), dtype=torch.bfloat16, device=device) if out is None else out
    if end > begin:
        decoder = Decoder.NESTED8 if nested else weight.decoder
        _launch_decode(weight, decoder, begin, end, out)
    return out


def _launch_decode(weight: PackedWeight, decoder: Decoder, begin: int, end: int, out: torch.Tensor) -> None:
    tiling, device = weight.tiling, weight.a.device
    nested, chunks = decoder == Decoder.NESTED8, tiling.chunks(weight.k)
    words, lists = (weight.escape8, weight.escapes8) if nested else (weight.escape, weight.escapes)
    per_chunk, first_chunk = tiling.rows * tiling.wk, begin // tiling.tile_rows * chunks
    first, groups = first_chunk * per_chunk, -(-weight.k // (UNIT_COLUMNS * _WARPS))
    items = -(-(end - begin) // tiling.tile_rows) * tiling.rows * groups
    pointers = (
        weight.a.data_ptr() + 1024 * first,
        weight.b.data_ptr() + 512 * first,
        words.data_ptr() + 4 * first_chunk * tiling.words,
        lists.data_ptr(),
        weight.base.data_ptr() + begin,
        out.data_ptr(),
    )
    params = _Params(*pointers, end - begin, weight.k, items, groups, chunks, tiling.rows, tiling.wk)
    ctas = _CTAS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count
    ctas = min(ctas, items)
    driver.launch(_function(device, decoder), ctas, 32 * _WARPS, [ctypes.addressof(params)], device)


def _function(device: torch.device, decoder: Decoder) -> driver.Function:
    if (device, decoder) not in _FUNCTIONS:
        _FUNCTIONS[device, decoder] = driver.load(DECODE, "w12_decode", decode_options(decoder), device)
    return _FUNCTIONS[device, decoder]
