"""Measures what the machine can do: bytes a second of a copy, FLOP a second of a matrix product."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from specpilot_sglang.eval.provenance import usable_cores
from specpilot_sglang.loop.cost.table import Rates

_ROUNDS = 9
#: Larger than any cache: a smaller copy would measure the cache.
_COPY_BYTES = {"cpu": 512 * 2**20, "cuda": 2 * 2**30}
_GEMM = {"cpu": 1024, "cuda": 8192}


def measure_rates(device: str, dtype: str = "bfloat16", threads: int | None = None) -> Rates:
    """Return the machine's rates, medians of several rounds.

    Args:
        device: `cpu` or `cuda`.
        dtype: data type of the matrix product.
        threads: of the CPU; those a server's rank would use by default.
    """
    import torch

    before = torch.get_num_threads()
    try:
        if device == "cpu":
            torch.set_num_threads(threads or _server_threads())
        return Rates(_copy_rate(torch, device), _gemm_rate(torch, device, getattr(torch, dtype)))
    finally:
        torch.set_num_threads(before)


def _server_threads() -> int:
    # As the CPU platform does for one rank (`platform_cpu.platform.default_threads`), whose module needs SGLang.
    return max(1, usable_cores() - 1)


def _copy_rate(torch: Any, device: str) -> float:
    size = _COPY_BYTES[device]
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * size / _median_seconds(torch, device, lambda: target.copy_(source))


def _gemm_rate(torch: Any, device: str, dtype: Any) -> float:
    n = _GEMM[device]
    a = torch.randn(n, n, device=device).to(dtype)
    b = torch.randn(n, n, device=device).to(dtype)
    return 2 * n**3 / _median_seconds(torch, device, lambda: a @ b)


def _median_seconds(torch: Any, device: str, work: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(_ROUNDS + 2):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[2:])
