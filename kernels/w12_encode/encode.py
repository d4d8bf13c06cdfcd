"""Encodes a BF16 matrix on its GPU, for load time."""

from __future__ import annotations

import numpy as np
import torch

from specpilot_sglang.w12.codec_torch import W12Tensor, require_bf16_matrix
from specpilot_sglang.w12.spec import MAX_BASE, WINDOW
from specpilot_sglang.w12.windows import RowChoice, choose

#: Words (two weights each) that a program reads at a time.
_BLOCK = 2048
#: Weights whose escapes are looked for at a time: bounds the flags, and torch's `nonzero` takes less than 2^31.
_FLAGS = 1 << 28


def takes(weight: torch.Tensor) -> bool:
    """Tell whether the kernels can read this matrix: whole 32-bit words in every row, 32-bit row numbers."""
    n, k = weight.shape
    aligned = weight.stride(1) == 1 and weight.stride(0) % 2 == 0 and weight.data_ptr() % 4 == 0
    return k % 2 == 0 and aligned and 0 < n < 1 << 31 and k > 0


def encode(weight: torch.Tensor, zero_code: bool | None = None) -> W12Tensor:
    """Encode a BF16 matrix [N, K] on its GPU; the same result as `codec_torch.encode`.

    Args:
        weight: bfloat16 for which `takes` holds.
        zero_code: have the zero code or not; None chooses the smaller result.

    Raises:
        W12Error: not a materialised BF16 matrix.
        ValueError: the kernels cannot read it.
    """
    from specpilot_sglang.kernels.w12_encode.kernels import count_exponents, write_planes

    require_bf16_matrix(weight)
    if not takes(weight):
        raise ValueError(f"a matrix of shape {tuple(weight.shape)}, strides {weight.stride()} has no 32-bit words")
    n, k = weight.shape
    pairs, stride = k // 2, weight.stride(0) // 2
    words = weight.detach().view(torch.int16).as_strided((n, k), (weight.stride(0), 1)).view(torch.int32)
    exponent, power = (torch.empty((n, 256), dtype=torch.int32, device=weight.device) for _ in range(2))
    block = min(_BLOCK, 1 << (pairs - 1).bit_length())
    count_exponents[(n,)](words, exponent, power, pairs, stride, BLOCK=block)
    chosen, zeros = choose([row_choice(exponent, power, k)], n, k, zero_code)
    base = torch.from_numpy(chosen.base).to(weight.device)
    a = torch.empty((n, pairs), dtype=torch.int16, device=weight.device)
    b = torch.empty((n, pairs), dtype=torch.uint8, device=weight.device)
    rows, cols = [], []
    step = max(1, _FLAGS // k)
    for begin in range(0, n, step):
        part = slice(begin, min(n, begin + step))
        flags = torch.empty_like(a[part])
        grid = (flags.shape[0], -(-pairs // block))
        write_planes[grid](
            words[part], base[part], a[part], b[part], flags, pairs, stride, ZERO_CODE=chosen.zero_code, BLOCK=block
        )
        place = flags.view(torch.bool).view(-1, k).nonzero()
        rows.append(place[:, 0] + begin)
        cols.append(place[:, 1])
    row, col = torch.cat(rows), torch.cat(cols)
    row_ptr = torch.zeros(n + 1, dtype=torch.int64, device=weight.device)
    row_ptr[1:] = torch.bincount(row, minlength=n).cumsum(0)
    val = weight.detach().view(torch.int16)[row, col]
    return W12Tensor(a.view(torch.uint8), b, base, row_ptr, col, val, k, chosen.zero_code, zeros)


def row_choice(exponent: torch.Tensor, power: torch.Tensor, k: int) -> RowChoice:
    """Return the best windows of rows; see `windows.row_choice`, whose arithmetic this is, on the GPU."""
    zeros = power[:, 0].clone()
    plain, plain_escapes = _best(_cover(exponent), k)
    nonzero, power = exponent.clone(), power.clone()
    nonzero[:, 0] -= zeros
    power[:, 0] = 0
    cover = _cover(nonzero) - power[:, : MAX_BASE + 1]
    coded, coded_escapes = _best(cover, k - zeros)
    return RowChoice(
        _host(plain).astype(np.uint8),
        _host(plain_escapes),
        _host(coded).astype(np.uint8),
        _host(coded_escapes),
        _host(zeros),
        _host(cover.amax(dim=1)) == 0,
    )


def _cover(exponent: torch.Tensor) -> torch.Tensor:
    total = torch.zeros((exponent.shape[0], 257), dtype=torch.int64, device=exponent.device)
    torch.cumsum(exponent, dim=1, out=total[:, 1:])
    return total[:, WINDOW:] - total[:, : MAX_BASE + 1]


def _best(cover: torch.Tensor, wanted: int | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's base with the largest cover, ties to the higher base, and the escapes it leaves."""
    most = cover.amax(dim=1)
    index = torch.arange(MAX_BASE + 1, device=cover.device)
    base = torch.where(cover == most[:, None], index, -1).amax(dim=1)
    return base, wanted - most


def _host(values: torch.Tensor) -> np.ndarray:
    return values.to(torch.int64).cpu().numpy()
