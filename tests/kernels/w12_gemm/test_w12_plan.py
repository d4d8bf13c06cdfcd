"""The stream-K plan, mirrored here: every chunk is dealt out once, and every partial tile finds its slots."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from specpilot_sglang.errors import W12Error
from specpilot_sglang.kernels.w12_gemm import linear
from specpilot_sglang.kernels.w12_gemm.bench import SHAPES
from specpilot_sglang.kernels.w12_gemm.plan import choose
from specpilot_sglang.kernels.w12_gemm.tiling import Decoder, Tiling, fitting_shared, grid, shared_memory

TILINGS = [Tiling(), Tiling(7, 2, 128), Tiling(10, ctas=128), Tiling(2, 4)]


def owner(position: int, share: int, extra: int) -> int:
    larger = extra * (share + 1)
    return position // (share + 1) if position < larger else extra + (position - larger) // share


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("shape", [*SHAPES, (1, 1024), (65, 512), (3072, 256)])
@pytest.mark.parametrize("multiprocessors", [132, 188, 7])
def test_every_chunk_has_one_owner_and_every_partial_tile_a_slot_of_its_own(tiling, shape, multiprocessors) -> None:
    tiles, chunks = tiling.tiles(shape[0]), tiling.chunks(shape[1])
    work, ctas = tiles * chunks, grid(tiling, *shape, multiprocessors)
    share, extra = divmod(work, ctas)
    bounds = [c * share + min(c, extra) for c in range(ctas + 1)]
    assert bounds[0] == 0
    assert bounds[-1] == work
    assert all(low < high for low, high in pairwise(bounds))
    slots: dict[int, int] = {}
    arrivals = [0] * tiles
    for cta, (begin, end) in enumerate(pairwise(bounds)):
        assert owner(begin, share, extra) == owner(end - 1, share, extra) == cta
        position = begin
        while position < end:
            tile, start = divmod(position, chunks)
            stop = min(chunks, start + end - position)
            if (start, stop) != (0, chunks):
                slot = 2 * cta + (start == 0)
                assert slot not in slots
                slots[slot] = tile
                arrivals[tile] += 1
            position += stop - start
    for tile, count in enumerate(arrivals):
        first, last = owner(tile * chunks, share, extra), owner(tile * chunks + chunks - 1, share, extra)
        assert count == (last - first + 1 if last > first else 0)
        if count:
            expected = [2 * first + 1, *(2 * c for c in range(first + 1, last + 1))]
            assert [slots[s] for s in expected] == [tile] * count


def test_the_plan_is_the_same_for_all_decoders_and_tokens() -> None:
    # `grid` takes neither; shared memory may only change how far ahead weights are read.
    assert grid(Tiling(), 14336, 5120, 132) == 132
    deep = shared_memory(Tiling(), Decoder.W12, 1, 232448)
    wide = shared_memory(Tiling(), Decoder.W12, 8, 232448)
    assert deep.stages > wide.stages >= 2
    assert deep.total <= 232448 >= wide.total


@pytest.mark.parametrize(
    ("multiprocessor", "block"), [(233472, 232448), (102400, 101376)], ids=["H200", "RTX PRO 6000"]
)
def test_every_variant_of_the_default_fits_the_gpus_it_is_built_for(multiprocessor, block) -> None:
    for decoder in Decoder:
        for eights in (1, 2, 4, 8):
            assert fitting_shared(Tiling(), decoder, eights, multiprocessor - 2048, block).total <= block


def test_a_count_of_ctas_that_divides_the_tiles_leaves_none_shared() -> None:
    tiling = Tiling(7, 2, 128)
    assert grid(tiling, 14336, 5120, 132) == tiling.tiles(14336) == 128


def test_shared_memory_that_is_too_small_is_an_error() -> None:
    with pytest.raises(W12Error, match="two stages"):
        shared_memory(Tiling(16, 4), Decoder.BF16, 8, 100_000)


@pytest.mark.parametrize("shape", [*SHAPES, (1, 64), (576, 1536), (248320, 192), (17408, 5120)])
def test_the_chosen_tiling_takes_every_served_shape(shape) -> None:
    tiling = choose(*shape)
    assert shape[1] % tiling.chunk_columns == 0
    assert grid(tiling, *shape, 132) <= 132
    for decoder in (Decoder.W12, Decoder.W12_ZERO, Decoder.NESTED8):
        for eights in (1, 2, 4, 8):
            assert fitting_shared(tiling, decoder, eights, 233472 - 2048, 232448).stages >= 2


@pytest.mark.parametrize(("k", "served"), [(7392, False), (10944, True), (2880, True), (100, False), (64, True)])
def test_b8_a_width_is_either_served_or_named_before_anything_is_packed(k, served, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    why = linear.unsupported(4096, k, torch.device("cuda", 0))
    assert why == ("" if served else f"K is {k}, not a multiple of 64")
    if served:
        tiling = choose(4096, k)
        assert k % tiling.chunk_columns == 0
        assert grid(tiling, 4096, k, 132) >= 1


@pytest.mark.parametrize("shape", [(14336, 5120), (34816, 5120), (16384, 5120), (24576, 4096)])
def test_weights_of_one_tile_a_cta_have_no_shared_tile(shape) -> None:
    tiling = choose(*shape)
    assert tiling.tiles(shape[0]) == grid(tiling, *shape, 132) == 128
