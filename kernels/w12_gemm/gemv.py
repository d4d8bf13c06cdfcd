"""SGLang's own BF16 kernel for one token (`--bf16-gemm-backend gemv`) as a baseline, without SGLang's build system.

Reads the device code of an installed sglang (or the file named by SPECPILOT_SGLANG_GEMV) at run time and compiles it
with NVRTC; the few names it takes from SGLang's headers are declared here. Nothing of it is kept in this project.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import torch

from specpilot_sglang.kernels.w12_gemm import driver
from specpilot_sglang.kernels.w12_gemm.build import architecture, compile_source

_SOURCE = "kernels/jit/csrc/gemm/hopper_bf16_gemv.cuh"
_NAMES = """
typedef unsigned int uint32_t; typedef unsigned short uint16_t; typedef unsigned long long size_t_;
namespace device {
struct bf16_t { uint16_t bits; };
struct bf16x2_t { uint32_t bits; };
typedef float2 fp32x2_t;
template <class To> __device__ __forceinline__ To cast(bf16x2_t v) {
  return {__uint_as_float(v.bits << 16), __uint_as_float(v.bits & 0xFFFF0000u)};
}
template <class To> __device__ __forceinline__ To cast(float v) {
  To r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(v)); return r;
}
template <bool kOn> __device__ __forceinline__ void PDLWaitPrimary() {
  if (kOn) asm volatile("griddepcontrol.wait;" ::: "memory");
}
template <bool kOn> __device__ __forceinline__ void PDLTriggerSecondary() {
  if (kOn) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
}
"""

Gemv = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


def source() -> Path | None:
    """Return the file with the kernel, None where there is none."""
    if named := os.environ.get("SPECPILOT_SGLANG_GEMV"):
        return Path(named)
    spec = importlib.util.find_spec("sglang")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [Path(folder) / _SOURCE for folder in folders if (Path(folder) / _SOURCE).exists()]
    return found[0] if found else None


def used(n: int, k: int) -> bool:
    """Tell whether SGLang 0.5.23 takes this kernel for a weight on Hopper under `--bf16-gemm-backend gemv`."""
    if k % 512 or not 512 <= k <= 17408 or n % 8 or not 64 <= n <= 65536 or (k == 5120 and n <= 512):
        return False
    return n < 12288 or n >= 32768


def load(n: int, k: int, device: torch.device, *, overlap: bool = True) -> Gemv:
    """Return `run(x [1, K], weight [N, K], out [1, N])`, built as SGLang builds it for Hopper.

    Raises:
        KernelBuildError: it does not compile.
        FileNotFoundError: sglang is not installed.
    """
    path = source()
    if path is None:
        raise FileNotFoundError("sglang is not installed, so its gemv kernel cannot be timed")
    text = path.read_text(encoding="utf-8")
    kernel = text[: text.rindex("template <")] + "}\n"
    code = "\n".join(line for line in kernel.splitlines() if not line.startswith("#include"))
    rows, unroll, warps = (2, 2, 8) if n >= 8192 else (1, 2, 8)
    name = f"sglang::hopper_bf16_gemv_kernel<{n}, {k}, {rows}, {unroll}, {warps}, {str(overlap).lower()}>"
    properties = torch.cuda.get_device_properties(device)
    options = [f"--gpu-architecture={architecture((properties.major, properties.minor))}", "--std=c++17"]
    machine_code, lowered = compile_source("gemv.cu", _NAMES + code, {}, options, name)
    function = driver.load_code(machine_code, lowered, device)
    ctas = -(-n // (rows * warps))

    def run(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (out, x, weight)]
        addresses = [ctypes.addressof(p) for p in pointers]
        driver.launch(function, ctas, 32 * warps, addresses, device, overlap=overlap)

    return run
