"""Checks of GPU, memory and disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from specpilot_sglang.doctor.check import Check, Status, ok, warn

GIB = 1 << 30
#: Below these a server with a small model fails in practice; below `warn` a large one may.
DISK_FAIL, DISK_WARN = 1 * GIB, 10 * GIB
RAM_FAIL, RAM_WARN = 1 * GIB, 6 * GIB
SHM_WARN = 1 * GIB
#: SGLang 0.5.23 pins CUDA 13 builds of torch and FlashInfer.
CUDA_WANTED = 13


def has_gpu() -> bool:
    """Tell whether NVML reports an NVIDIA GPU that CUDA_VISIBLE_DEVICES does not hide."""
    return bool(_gpus()[0])


def check_hardware() -> Iterator[Check]:
    """Check GPUs, memory, shared memory and disk."""
    yield from _check_gpus()
    yield from _driver()
    yield _memory()
    yield _shared_memory()
    for name, folder in (("disk, home", Path.home()), ("disk, temporary", Path(tempfile.gettempdir()))):
        yield _disk(name, folder)


def _check_gpus() -> Iterator[Check]:
    gpus, why = _gpus()
    if not gpus:
        yield warn(
            "GPU", why, "nothing to do for the CPU reference platform; for speed use a machine with an NVIDIA GPU"
        )
    for i, (name, free, total) in enumerate(gpus):
        what = f"{name}, {free / GIB:.0f} of {total / GIB:.0f} GiB free"
        if free < total / 2:
            yield warn(f"GPU {i}", what, "end other processes on it (nvidia-smi) or choose another GPU")
        else:
            yield ok(f"GPU {i}", what)


def _gpus() -> tuple[list[tuple[str, int, int]], str]:
    """Return (name, free bytes, total bytes) of every GPU, and why there are none."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return [], "CUDA_VISIBLE_DEVICES hides every GPU"
    try:
        import pynvml
    except ImportError:
        return [], "nvidia-ml-py is not installed (pip install nvidia-ml-py)"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        return [], f"no NVIDIA GPU ({exc})"
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        found = []
        for handle in handles:
            name, memory = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetMemoryInfo(handle)
            found.append((name.decode() if isinstance(name, bytes) else str(name), int(memory.free), int(memory.total)))
        return found, "no NVIDIA GPU"
    finally:
        pynvml.nvmlShutdown()


def _driver() -> Iterator[Check]:
    if not has_gpu():
        return
    import pynvml

    pynvml.nvmlInit()
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
        driver = version.decode() if isinstance(version, bytes) else str(version)
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    finally:
        pynvml.nvmlShutdown()
    detail = f"{driver}, CUDA {cuda // 1000}.{cuda % 1000 // 10}"
    if cuda // 1000 < CUDA_WANTED:
        fix = f"update the driver, or install cuda-compat-{CUDA_WANTED}"
        yield warn("NVIDIA driver", f"{detail}, but SGLang's packages are built for CUDA {CUDA_WANTED}", fix)
    else:
        yield ok("NVIDIA driver", detail)


def _memory() -> Check:
    memory = psutil.virtual_memory()
    free = min(memory.available, _cgroup_room() or memory.available)
    fix = "end other processes, or use a machine with more memory"
    return _sized("memory", free, f"{free / GIB:.1f} GiB available", RAM_FAIL, RAM_WARN, fix)


def _cgroup_room() -> int | None:
    """Return the bytes a container may still use (cgroup v2), None without a limit."""
    root = Path("/sys/fs/cgroup")
    try:
        limit, used = (root / "memory.max").read_text().strip(), (root / "memory.current").read_text()
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None


def _shared_memory() -> Check:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError as exc:
        return warn("/dev/shm", f"not usable ({exc.strerror})", "mount a tmpfs on /dev/shm")
    fix = "start the container with --shm-size=8g (tensor parallelism needs it)"
    return _sized("/dev/shm", free, f"{free / GIB:.1f} GiB free", 0, SHM_WARN, fix)


def _disk(name: str, folder: Path) -> Check:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as exc:
        return warn(name, f"{folder} is not usable ({exc.strerror})", "set HOME and TMPDIR to existing folders")
    return _sized(
        name, free, f"{free / GIB:.1f} GiB free at {folder}", DISK_FAIL, DISK_WARN, "make room, or move the cache"
    )


def _sized(name: str, free: int, detail: str, fail_below: int, warn_below: int, fix: str) -> Check:
    if free >= warn_below:
        return ok(name, detail)
    return Check(name, Status.FAIL if free < fail_below else Status.WARN, detail, fix)
