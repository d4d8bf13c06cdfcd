"""Compiles the kernel for one GPU architecture with NVRTC, and keeps the result by content hash.

NVRTC comes with torch's CUDA wheels, so no nvcc and no host compiler are needed; with a cubin in the cache, not even
NVRTC. Every variant (decoder, token eights, tiling) is a small source of its own, because all its sizes are constants.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.kernels.w12_gemm.tiling import Decoder, Tiling

GEMM, WIDE, DECODE = "w12_gemm.cu", "w12_wide.cu", "w12_decode.cu"
HEADERS = ("decode.cuh", "ptx.cuh", "unit.cuh", "wgmma.cuh", "wide_walk.cuh")
#: Architectures the source is written for; bulk copies and mbarriers need compute capability 9.0.
ARCHITECTURES = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a", (12, 0): "sm_120a"}


class KernelBuildError(SpecPilotError):
    """The kernel cannot be compiled or loaded."""


def architecture(capability: tuple[int, int]) -> str:
    """Return NVRTC's name of a compute capability.

    Raises:
        KernelBuildError: the kernel does not run on it.
    """
    if capability not in ARCHITECTURES:
        known = ", ".join(f"{a}.{b}" for a, b in ARCHITECTURES)
        raise KernelBuildError(
            f"the W12 kernel runs on compute capability {known}, not {capability[0]}.{capability[1]}",
            fix="this GPU takes the decode path",
        )
    return ARCHITECTURES[capability]


def uses_wgmma(tiling: Tiling, token_eights: int, arch: str) -> bool:
    """Tell whether a kernel multiplies by `wgmma`, which only Hopper has; its bits are those of `mma`."""
    return arch == "sm_90a" and tiling.rows >= 4 and token_eights >= tiling.wgmma_from


def gemm_options(tiling: Tiling, decoder: Decoder, token_eights: int, arch: str) -> list[str]:
    """Return the compiler options that select a variant of the GEMM."""
    wgmma = uses_wgmma(tiling, token_eights, arch)
    values = {
        "DECODER": int(decoder),
        "NT": token_eights,
        "ROWS": tiling.rows,
        "WN": tiling.warps(token_eights, wgmma=wgmma),
        "WK": tiling.wk,
        "PARTS": tiling.parts(token_eights),
        "WGMMA": int(wgmma),
    }
    return [f"-D{name}={value}" for name, value in values.items()]


def decode_options(decoder: Decoder) -> list[str]:
    """Return the compiler options that select a variant of the decode kernel."""
    return [f"-DDECODER={int(decoder)}"]


def cubin(source: str, variant: Sequence[str], arch: str) -> bytes:
    """Return the machine code of a variant, from the cache or newly compiled.

    Args:
        source: `GEMM`, `WIDE` or `DECODE`.
        variant: `gemm_options` or `decode_options`.
        arch: `architecture` of the GPU.

    Raises:
        KernelBuildError: neither a cached cubin nor NVRTC is there, or the source does not compile.
    """
    options = [f"--gpu-architecture={arch}", "--std=c++17", *variant]
    texts = {name: (Path(__file__).parent / name).read_text(encoding="utf-8") for name in (source, *HEADERS)}
    digest = hashlib.sha256("\0".join([*options, *texts.values()]).encode()).hexdigest()[:32]
    target = _folder() / f"{digest}.cubin"
    if target.exists():
        return target.read_bytes()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.exists():
                scratch = target.with_suffix(f".{os.getpid()}.tmp")
                scratch.write_bytes(_compile(source, texts, options))
                scratch.replace(target)
        return target.read_bytes()
    except OSError as exc:
        fix = "free some space or set SPECPILOT_CACHE to a folder you can write to"
        raise KernelBuildError(f"cannot write the kernel cache ({exc.strerror or exc})", where=target, fix=fix) from exc


def _folder() -> Path:
    from specpilot_sglang.assets.cache import cache_dir

    return cache_dir() / "kernels" / "w12_gemm"


def _compile(source: str, texts: dict[str, str], options: list[str]) -> bytes:
    headers = {name: texts[name] for name in HEADERS}
    return compile_source(source, texts[source], headers, options)[0]


def compile_source(
    name: str, text: str, headers: dict[str, str], options: list[str], expression: str = ""
) -> tuple[bytes, str]:
    """Return the machine code of a CUDA source, and the symbol of `expression` (a kernel template's instance) in it.

    Raises:
        KernelBuildError: NVRTC is missing, or the source does not compile.
    """
    try:
        from cuda.bindings import nvrtc  # type: ignore[import-untyped]
    except ImportError as exc:
        raise KernelBuildError(
            f"no cached W12 kernel and no compiler ({exc})", fix="pip install cuda-python nvidia-cuda-nvrtc"
        ) from exc
    parts = [[part.encode() for part in group] for group in (headers.values(), headers.keys())]
    error, program = nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), len(headers), *parts)
    _check(error, "create the program")
    try:
        if expression:
            _check(nvrtc.nvrtcAddNameExpression(program, expression.encode())[0], "name the kernel")
        (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = b" " * size
            nvrtc.nvrtcGetProgramLog(program, log)
            raise KernelBuildError(f"{name} does not compile: {log.decode(errors='replace').strip()}")
        error, size = nvrtc.nvrtcGetCUBINSize(program)
        _check(error, "read the cubin's size")
        code = b" " * size
        _check(nvrtc.nvrtcGetCUBIN(program, code)[0], "read the cubin")
        symbol = nvrtc.nvrtcGetLoweredName(program, expression.encode())[1].decode() if expression else ""
        return code, symbol
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _check(error: object, what: str) -> None:
    if int(error):  # type: ignore[call-overload]
        raise KernelBuildError(f"NVRTC could not {what}: {error}")
