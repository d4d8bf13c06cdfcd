"""What is brought ahead of a call lies inside the weight, where each CTA begins, and not beyond what was asked for."""

import itertools

import pytest
from w12_data import gaussian

from specpilot_sglang.kernels.w12_gemm.ahead import first_reads
from specpilot_sglang.kernels.w12_gemm.pack import pack
from specpilot_sglang.kernels.w12_gemm.plan import choose
from specpilot_sglang.kernels.w12_gemm.tiling import grid
from specpilot_sglang.w12.codec_torch import encode

MULTIPROCESSORS = 132


@pytest.mark.parametrize(("n", "k"), [(2048, 512), (4352, 256), (640, 1024), (96, 640), (33000, 64)])
@pytest.mark.parametrize("total", [1, 200_000, 1 << 30])
def test_parts_are_where_ctas_begin(n: int, k: int, total: int) -> None:
    weight = pack(encode(gaussian(n, k, 0)), choose(n, k))
    tiling, chunks = weight.tiling, weight.tiling.chunks(k)
    ctas = grid(tiling, n, k, MULTIPROCESSORS)
    parts = first_reads(weight, MULTIPROCESSORS, total).tolist()
    work = tiling.tiles(n) * chunks
    firsts = []
    for cta in range(ctas):  # as w12_gemm.cu deals out: a tile that the CTA only begins comes first
        share, extra = divmod(work, ctas)
        begin, end = (c * share + min(c, extra) for c in (cta, cta + 1))
        tile = end // chunks * chunks
        firsts.append(tile if begin < tile < end else begin)
    step = 1024 * tiling.rows * tiling.wk
    assert sorted((a - weight.a.data_ptr()) // step for a, _ in parts[0::3]) == sorted(firsts)
    for plane, which in ((weight.a, 0), (weight.b, 1), (weight.escape, 2)):
        begin, size = plane.data_ptr(), plane.numel() * plane.element_size()
        spans = sorted((a, a + b) for a, b in parts[which::3])
        assert all(begin <= a < b <= begin + size and a % 16 == b % 16 == 0 for a, b in spans)
        assert all(b <= a for (_, b), (a, _) in itertools.pairwise(spans))
    assert sum(b for _, b in parts) <= max(total, 2 * step * ctas)
