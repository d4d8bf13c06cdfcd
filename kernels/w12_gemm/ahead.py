"""What a call with a weight reads first, so that the call before it can bring that into L2.

Between two GEMMs of a decode step run small kernels (norms, activations, attention) that leave memory idle. Nothing
uses this by default: it has not run on a GPU yet.
"""

from __future__ import annotations

import torch

from specpilot_sglang.kernels.w12_gemm.pack import PackedWeight
from specpilot_sglang.kernels.w12_gemm.tiling import Decoder, grid

#: Bytes to bring ahead: what memory delivers during the small kernels, well below the L2 of an H200 (60 MB in two
#: halves).
BYTES = 16 << 20


def first_reads(weight: PackedWeight, multiprocessors: int, total: int = BYTES) -> torch.Tensor:
    """Return [parts, 2] int64 on the weight's device: address and bytes of what each CTA reads first.

    Args:
        weight: W12; mirrors `share_of` and `load_weights` of w12_gemm.cu.
        multiprocessors: of the GPU.
        total: bytes of all parts together, at most.
    """
    tiling, chunks = weight.tiling, weight.tiling.chunks(weight.k)
    ctas = grid(tiling, weight.n, weight.k, multiprocessors)
    share, extra = divmod(tiling.tiles(weight.n) * chunks, ctas)
    units = tiling.rows * tiling.wk
    sizes = ((weight.a, 1024 * units), (weight.b, 512 * units), (weight.escape, 4 * tiling.words))
    each = max(1, total // ctas // sum(size for _, size in sizes)) if weight.decoder != Decoder.BF16 else 0
    parts = []
    for cta in range(ctas):
        begin, end = (c * share + min(c, extra) for c in (cta, cta + 1))
        begun = end % chunks
        shift = end - begin - begun if 0 < begun < end - begin else 0
        count = min(each, end - begin - shift)
        parts += [(plane.data_ptr() + size * (begin + shift), size * count) for plane, size in sizes if count]
    return torch.tensor(parts, dtype=torch.int64, device=weight.a.device).view(-1, 2)
