"""The benchmark times cold weights only, and draws the roof where it is."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest
import torch

from specpilot_sglang.cli import bench as cli
from specpilot_sglang.errors import W12Error
from specpilot_sglang.kernels.w12_gemm import bench
from specpilot_sglang.kernels.w12_gemm.bench import SHAPES, Candidate, Timing, check_cold, copies_of
from specpilot_sglang.kernels.w12_gemm.bench_report import PEAK, roof

#: L2 of an H200, bytes.
L2 = 60 << 20


def candidate(stream_bytes: int, copies: int) -> Candidate:
    return Candidate("linear", lambda i: i, copies, stream_bytes)


def test_b15_weights_that_a_cache_could_hold_are_not_timed() -> None:
    with pytest.raises(W12Error, match="L2 cache holds"):
        check_cold(candidate(30 << 20, 4), L2)
    check_cold(candidate(30 << 20, 5), L2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bits", [16, 12, 8])
def test_b15_copies_of_every_shape_exceed_twice_the_cache(shape, bits) -> None:
    size = shape[0] * shape[1] * bits // 8
    check_cold(candidate(size, copies_of(size)), L2)


def test_the_roof_has_its_corner_where_memory_and_arithmetic_meet() -> None:
    intensity, rate = roof(4.0)
    assert intensity == sorted(intensity)
    assert (PEAK / 4.0, PEAK) in zip(intensity, rate, strict=True)
    assert rate[0] == 4.0 * intensity[0]
    assert rate[-1] == PEAK


def test_a_run_that_is_stopped_keeps_what_it_measured_and_writes_no_table(tmp_path, monkeypatch) -> None:
    def cells(*_: object) -> Iterator[list[Timing]]:
        yield [Timing(name, 14336, 5120, 1, us, 0.1, 1 << 27) for name, us in (("linear", 36.0), ("w12", 24.0))]
        assert not json.loads((tmp_path / "gemm.json").read_text())["complete"]
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench, "copy_ceiling", lambda: 4.0)
    monkeypatch.setattr(bench, "bench", cells)
    monkeypatch.setattr(cli, "_about", lambda escapes: {"gpu": "GPU", "date": "today"})
    with pytest.raises(KeyboardInterrupt):
        cli.gemm(tmp_path, None, "", 0.0, tmp_path / "table.json")
    kept = json.loads((tmp_path / "gemm.json").read_text())
    assert [row["ratio"] for row in kept["rows"]] == [1.0, 1.5]
    assert not kept["complete"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gemm-ratios.png", "gemm-roofline.png", "gemm.json"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
