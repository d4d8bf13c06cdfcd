"""The few driver calls the kernels need: load machine code, launch on torch's current stream, describe a tensor."""

from __future__ import annotations

import ctypes
import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from specpilot_sglang.kernels.w12_gemm.build import KernelBuildError, architecture, cubin

#: Shared memory the driver keeps for itself in each CTA, bytes.
RESERVED_SHARED = 1024
#: Source, compiler options and hash of the machine code of each kernel this process has loaded.
LOADED: list[dict[str, str]] = []


@dataclass(frozen=True)
class Function:
    """A loaded kernel; `library` keeps its code alive."""

    handle: Any
    library: Any
    name: str
    shared_bytes: int


def load(source: str, name: str, variant: list[str], device: torch.device, shared_bytes: int = 0) -> Function:
    """Compile (or take from the cache) and load a kernel onto a device.

    Raises:
        KernelBuildError: no code for this GPU, or inside a CUDA graph capture.
    """
    refuse_in_capture("compile or load the kernel")
    properties = torch.cuda.get_device_properties(device)
    code = cubin(source, variant, architecture((properties.major, properties.minor)))
    LOADED.append({"source": source, "options": " ".join(variant), "sha256": hashlib.sha256(code).hexdigest()[:32]})
    return load_code(code, name, device, shared_bytes)


def load_code(code: bytes, name: str, device: torch.device, shared_bytes: int = 0) -> Function:
    """Load machine code onto a device; arguments and errors as `load`."""
    from cuda.bindings import driver  # type: ignore[import-untyped]

    with torch.cuda.device(device):
        torch.cuda.current_stream(device).synchronize()  # makes torch's context current in the driver
        library = check(driver.cuLibraryLoadData(code, [], [], 0, [], [], 0), f"load {name}")
        kernel = check(driver.cuLibraryGetKernel(library, name.encode()), f"find {name}")
        handle = check(driver.cuKernelGetFunction(kernel), f"get {name}")
        if shared_bytes:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(handle, attribute, shared_bytes), f"reserve shared memory for {name}")
    return Function(handle, library, name, shared_bytes)


def launch(
    function: Function, ctas: int, threads: int, pointers: list[int], device: torch.device, *, overlap: bool = False
) -> None:
    """Launch a kernel on the device's current stream.

    Args:
        function: what to launch.
        ctas, threads: grid and block size.
        pointers: address of each parameter.
        device: where.
        overlap: let it start before the previous kernel has ended (it waits itself where it must).

    Raises:
        KernelBuildError: CUDA reports an error.
    """
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.blockDimX, config.sharedMemBytes = ctas, threads, function.shared_bytes
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    config.hStream = torch.cuda.current_stream(device).cuda_stream
    if overlap:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = [attribute], 1
    arguments = (ctypes.c_void_p * len(pointers))(*pointers)
    with torch.cuda.device(device):
        check(
            driver.cuLaunchKernelEx(config, function.handle, ctypes.addressof(arguments), 0), f"launch {function.name}"
        )


def describe(x: torch.Tensor, box_rows: int, box_columns: int) -> Any:
    """Describe a BF16 matrix to the copy engine: boxes with 128-byte swizzled rows, missing rows read as zero."""
    from cuda.bindings import driver

    rows, columns = x.shape
    stride = x.stride(0) if rows > 1 else columns
    result = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        2,
        x.data_ptr(),
        [driver.cuuint64_t(columns), driver.cuuint64_t(rows)],
        [driver.cuuint64_t(2 * stride)],
        [driver.cuuint32_t(box_columns), driver.cuuint32_t(box_rows)],
        [driver.cuuint32_t(1), driver.cuuint32_t(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return check(result, "describe x to the copy engine")


def refuse_in_capture(what: str) -> None:
    """Raise `KernelBuildError` when the current stream is capturing a CUDA graph."""
    if torch.cuda.is_current_stream_capturing():
        raise KernelBuildError(f"cannot {what} inside a CUDA graph capture", fix="call prepare() before the capture")


def check(result: tuple[Any, ...], what: str) -> Any:
    """Return the value of a driver call, or raise `KernelBuildError` with its error."""
    error, *values = result
    if int(error):
        raise KernelBuildError(f"CUDA could not {what}: {error.name}")
    return values[0] if values else None
