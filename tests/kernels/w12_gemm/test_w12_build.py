"""Compiling and caching: all decoders build for Hopper and Blackwell, and a cached cubin needs no compiler."""

from __future__ import annotations

import sys

import pytest

from specpilot_sglang.kernels.w12_gemm import build
from specpilot_sglang.kernels.w12_gemm.tiling import Decoder, Tiling
from specpilot_sglang.kernels.w12_gemm.wide import Shape

pytest.importorskip("cuda.bindings.nvrtc")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SPECPILOT_CACHE", str(tmp_path))


@pytest.mark.parametrize("decoder", list(Decoder))
def test_builds_for_hopper(decoder) -> None:
    assert build.cubin(build.GEMM, build.gemm_options(Tiling(), decoder, 1, "sm_90a"), "sm_90a")[:4] == b"\x7fELF"


@pytest.mark.parametrize("decoder", [Decoder.W12, Decoder.W12_ZERO, Decoder.NESTED8])
def test_decode_kernel_builds(decoder) -> None:
    assert build.cubin(build.DECODE, build.decode_options(decoder), "sm_90a")[:4] == b"\x7fELF"


def test_prefill_kernel_builds() -> None:
    for shape in (Shape(128), Shape(256)):
        assert shape.shared(Decoder.BF16) <= 232448
        assert build.cubin(build.WIDE, shape.options(Decoder.W12), "sm_90a")[:4] == b"\x7fELF"


@pytest.mark.parametrize("eights", [2, 4])
def test_builds_for_rtx_pro_6000_which_has_no_wgmma(eights) -> None:
    options = build.gemm_options(Tiling(), Decoder.W12, eights, "sm_120a")
    assert build.cubin(build.GEMM, options, "sm_120a")[:4] == b"\x7fELF"


def test_a_cached_cubin_needs_no_compiler(monkeypatch, tmp_path) -> None:
    code = build.cubin(build.GEMM, build.gemm_options(Tiling(), Decoder.BF16, 1, "sm_90a"), "sm_90a")
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert build.cubin(build.GEMM, build.gemm_options(Tiling(), Decoder.BF16, 1, "sm_90a"), "sm_90a") == code
    with pytest.raises(build.KernelBuildError, match="no compiler"):
        build.cubin(build.GEMM, build.gemm_options(Tiling(), Decoder.BF16, 2, "sm_90a"), "sm_90a")
    assert [p.suffix for p in tmp_path.rglob("*.tmp")] == []


def test_a_source_that_does_not_compile_shows_the_compilers_words() -> None:
    options = [*build.gemm_options(Tiling(), Decoder.W12, 1, "sm_90a"), "-DROWS=15"]
    with pytest.raises(build.KernelBuildError, match="one warp for each row unit"):
        build.cubin(build.GEMM, options, "sm_90a")


def test_other_gpus_are_refused_by_name() -> None:
    with pytest.raises(build.KernelBuildError, match=r"not 8\.9"):
        build.architecture((8, 9))
    assert build.architecture((9, 0)) == "sm_90a"
