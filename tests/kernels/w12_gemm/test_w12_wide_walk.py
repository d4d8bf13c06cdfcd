"""How the prefill kernel deals out its work: every column of every tile once, and nobody waits for a later worker."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from specpilot_sglang.kernels.w12_gemm import wide
from specpilot_sglang.kernels.w12_gemm.tiling import Tiling
from specpilot_sglang.kernels.w12_gemm.wide import SHARING, deal

HERE = Path(__file__).parent
SOURCES = Path(__file__).parents[3] / "kernels" / "w12_gemm"

Compile = Callable[[int], ctypes.CDLL]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no host C++ compiler")

    @functools.cache
    def build(tokens: int) -> ctypes.CDLL:
        library = tmp_path_factory.mktemp("walk") / f"walk{tokens}.so"
        command = [compiler, "-O1", "-shared", "-fPIC", "-std=c++17", f"-I{SOURCES}", f"-DTOKENS={tokens}"]
        subprocess.run([*command, str(HERE / "host_walk.cpp"), "-o", str(library)], check=True)
        return ctypes.CDLL(str(library))

    return build


def array(*values: int) -> ctypes.Array:
    return (ctypes.c_uint * len(values))(*values)


@pytest.mark.parametrize(
    ("row_tiles", "token_tiles", "columns", "workers"),
    [
        (56, 4, 80, 66),
        (40, 1, 272, 132),
        (112, 4, 80, 132),
        (66, 2, 8, 132),
        (3, 1, 96, 132),
        (1, 1, 5, 132),
        (12, 33, 24, 7),
        (128, 1, 80, 132),
        (112, 1, 80, 132),
        (128, 8, 80, 132),
        (32, 1, 64, 132),
        (40, 1, 96, 132),
        (12, 1, 140, 132),
    ],
)
def test_every_column_of_every_tile_is_dealt_out_once(compiled, row_tiles, token_tiles, columns, workers) -> None:
    library = compiled(256)
    work = deal(row_tiles * token_tiles, columns, workers)
    shares = (work.workers, work.shared_tiles, work.share, work.extra)
    values = array(columns, 8, 8, 0, 1, 8, row_tiles, token_tiles, *shares)
    done: dict[tuple[int, int], int] = {}
    finishers, columns_of = {}, []
    for worker in range(work.workers):
        out = (ctypes.c_uint * 6000)()
        count = library.segments(values, worker, out)
        segments = [tuple(out[3 * i : 3 * i + 3]) for i in range(count)]
        assert sum(to < columns for _, _, to in segments) <= 1  # one slot a worker
        columns_of.append(sum(to - begin for _, begin, to in segments))
        for tile, begin, to in segments:
            assert begin < to <= columns
            for column in range(begin, to):
                assert (tile, column) not in done
                done[tile, column] = worker
            if to == columns:
                finishers[tile] = worker
    assert len(done) == row_tiles * token_tiles * columns
    assert max(columns_of) <= len(done) // work.workers + SHARING + 1
    for tile, worker in finishers.items():
        before = {done[tile, c] for c in range(columns)} - {worker}
        first = library.first_worker(values, tile) if before else worker
        assert before == set(range(first, worker))  # whom it waits for: those before it, all of them


@pytest.mark.parametrize(("tiles", "columns"), [(448, 80), (160, 272), (272, 80)])
def test_nobody_waits_for_a_part_longer_than_its_own_work_takes(compiled, tiles: int, columns: int) -> None:
    library = compiled(256)
    work = deal(tiles, columns, 132)
    values = array(columns, 8, 8, 0, 1, 8, tiles, 1, work.workers, work.shared_tiles, work.share, work.extra)
    ready: dict[int, int] = {}
    needed: list[tuple[int, int]] = []
    for worker in range(work.workers):
        out, time = (ctypes.c_uint * 300)(), 0
        for i in range(library.segments(values, worker, out)):
            tile, begin, end = out[3 * i : 3 * i + 3]
            time += end - begin
            if end < columns:
                ready[worker] = time
            elif begin:
                needed += [(other, time) for other in range(library.first_worker(values, tile), worker)]
    assert needed
    assert all(ready[other] <= time + 1 for other, time in needed)


@pytest.mark.parametrize(
    ("tiles", "columns", "workers", "share"),
    [
        (32, 64, 128, 16),
        (40, 96, 120, 32),
        (12, 140, 84, 20),
        (40, 272, 132, 82),
        (112, 80, 112, 0),
        (140, 24, 132, 25),
    ],
)
def test_few_tiles_are_cut_into_equal_parts_where_that_takes_less_than_shares_of_a_line(tiles, columns, workers, share):
    work = deal(tiles, columns, 132)
    assert (work.workers, work.share) == (workers, share)
    if share * workers == tiles * columns:
        assert work.extra == 0


@pytest.mark.parametrize(
    ("rows", "tokens", "columns", "width"),
    [
        (14336, 128, 80, 128),
        (14336, 256, 80, 256),
        (4096, 256, 64, 128),
        (1536, 256, 140, 128),
        (5120, 256, 96, 256),
        (5120, 256, 272, 256),
        (4096, 1024, 64, 256),
    ],
)
def test_tiles_are_narrow_where_wide_ones_would_leave_workers_idle(rows, tokens, columns, width) -> None:
    assert wide._shape(rows, tokens, columns, 132).tokens == width


def test_a_tokens_sum_is_cut_by_the_number_of_tokens_and_its_place() -> None:
    def cuts(tokens: int, token_tile: int) -> list[set[int]]:
        """Return where the sums of a token in this tile are cut, by row tile."""
        row_tiles, columns = 14336 // wide.TILE_ROWS, 5120 // 64
        token_tiles = -(-tokens // wide._shape(14336, tokens, columns, 132).tokens)
        work = deal(row_tiles * token_tiles, columns, 132)
        ends = {worker * work.share + min(worker, work.extra) for worker in range(1, work.workers)}
        firsts = [(row_tile * token_tiles + token_tile) * columns for row_tile in range(row_tiles)]
        return [{end - first for end in ends if first < end < first + columns} for first in firsts]

    assert cuts(200, 0) != cuts(400, 0)
    assert cuts(1600, 0) != cuts(1600, 1)


@pytest.mark.parametrize("tokens", [128, 256])
def test_tiles_cover_the_result(compiled, tokens: int) -> None:
    library = compiled(tokens)
    values = array(80, 8, 8, 0, 1, 8, 5, 19, 66, 0, 0, 0)
    places = set()
    for tile in range(5 * 19):
        out = (ctypes.c_uint * 2)()
        library.place(values, tile, out)
        places.add(tuple(out))
    assert places == {(128 * i, tokens * j) for i in range(5) for j in range(19)}


@pytest.mark.parametrize("tiling", [Tiling(7, 2), Tiling(16), Tiling(17), Tiling(4, 4), Tiling(1, 4)])
def test_units_are_found_where_the_tiling_put_them(compiled, tiling: Tiling) -> None:
    library = compiled(256)
    tiles, chunks = 3, 5
    units, columns = tiles * tiling.rows, chunks * tiling.wk
    layout = (tiling.rows, tiling.wk.bit_length() - 1, chunks, tiling.words)
    values = array(columns, units, *layout, 1, 1, 1, 0, 0, 0)
    for unit in range(units + 2):
        for column in range(columns):
            out = (ctypes.c_uint * 2)()
            library.unit_at(values, unit, column, out)
            tile, row = divmod(min(unit, units - 1), tiling.rows)
            chunk = tile * chunks + column // tiling.wk
            inside = row * tiling.wk + column % tiling.wk
            assert tuple(out) == (chunk * tiling.rows * tiling.wk + inside, chunk * tiling.words + inside)
