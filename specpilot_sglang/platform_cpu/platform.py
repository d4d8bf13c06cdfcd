"""The platform object SGLang asks for devices, defaults and kernels."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

from specpilot_sglang.platform_cpu.seams import (
    DFLASH_SEAMS,
    EARLY_SEAMS,
    LOADED_SEAMS,
    WORKER_SEAMS,
    apply_seams,
    hybrid_seams,
)

ATTENTION_BACKEND = "specpilot_sdpa"

#: KV slots where the user names none: stock would claim most of the machine's memory.
DEFAULT_KV_TOKENS = 32768
DEFAULT_RUNNING_REQUESTS = 48

_SPECULATIVE = frozenset({"DFLASH"})


class SpecPilotCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Serves stock SGLang, DFLASH included, with torch on CPU processes."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def __init__(self) -> None:
        # Read when SGLang's utilities are imported: worker processes inherit it, and autograd's bookkeeping
        # costs about a tenth of a step of a small model.
        os.environ.setdefault("SGLANG_ENABLE_TORCH_INFERENCE_MODE", "1")
        # Stock waits a minute for CUDA core dumps after a crash.
        os.environ.setdefault("SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS", "0")
        _register_attention_backend()
        apply_seams(EARLY_SEAMS)

    def get_device(self, device_id: int = 0) -> str:
        """Device string; every rank computes on the one CPU device."""
        return "cpu"

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Fill what the user left open; stock's CPU defaults want kernels that are not on PyPI."""
        if server_args.attention_backend in (None, "intel_amx"):
            server_args.attention_backend = ATTENTION_BACKEND
        server_args.sampling_backend = "pytorch"
        server_args.disable_cuda_graph = True
        # A stock scheduler spins while idle, and would take a core from whoever works.
        server_args.sleep_on_idle = True
        if server_args.dtype in ("float", "float32"):
            # Stock keeps convolution states in BF16 whatever the model computes in. Worker processes inherit it.
            os.environ.setdefault("SGLANG_MAMBA_CONV_DTYPE", "float32")
        ranks = server_args.tp_size * server_args.pp_size * server_args.dp_size
        if ranks > 1:
            # Without it stock wants a NUMA node for each rank.
            os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "|".join(_cores_of_ranks(ranks)))
        if server_args.max_total_tokens is None:
            server_args.max_total_tokens = DEFAULT_KV_TOKENS
        if server_args.max_running_requests is None:
            server_args.max_running_requests = DEFAULT_RUNNING_REQUESTS

    def init_backend(self) -> None:
        """Patch the worker process before it builds anything."""
        from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

        from specpilot_sglang.platform_cpu.fused import register_fused_ops

        register_fused_ops()
        ATTENTION_BACKENDS.setdefault(ATTENTION_BACKEND, _create_attention_backend)
        apply_seams(WORKER_SEAMS)

    def post_load_model(self, model: torch.nn.Module) -> None:
        """Apply the patches whose modules are only complete now, and share the cores among the ranks."""
        apply_seams(LOADED_SEAMS)
        if type(model).__name__.startswith("DFlash"):
            apply_seams(DFLASH_SEAMS)
        if any(type(module).__name__ == "RadixLinearAttention" for module in model.modules()):
            apply_seams(hybrid_seams())
        if "OMP_NUM_THREADS" not in os.environ:
            from sglang.srt.runtime_context import get_parallel

            torch.set_num_threads(default_threads(get_parallel().tp_size))

    def get_default_attention_backend(self) -> str:
        """Name of this platform's attention backend."""
        return ATTENTION_BACKEND

    def get_default_speculative_draft_attention_backend(self, algorithm: str) -> str:
        """The drafter uses the target's backend."""
        return ATTENTION_BACKEND

    def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
        """Only this platform's backend attends without a causal mask."""
        return backend == ATTENTION_BACKEND

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        """Algorithms whose whole path was made to run here."""
        return algorithm in _SPECULATIVE

    def support_mamba_cache_extra_buffer(self) -> bool:
        """Snapshots of recurrent states are plain tensor copies."""
        return True

    def get_speculative_cache_locs_fn(self) -> Callable[..., torch.Tensor]:
        """Torch gather of a draft block's KV slots."""
        from specpilot_sglang.platform_cpu.ops import extend_cache_locs

        return extend_cache_locs

    def get_kv_pool_cls(self, *, kind: str) -> type | None:
        """KV pool with torch copies for multi-head attention; stock's own for the rest."""
        if kind != "mha":
            return None
        from specpilot_sglang.platform_cpu.kv_pool import CpuMHATokenToKVPool

        return CpuMHATokenToKVPool

    def get_dispatch_key_name(self) -> str:
        """Key under which `fused` registers its ops; others run their native form."""
        from specpilot_sglang.platform_cpu.fused import DISPATCH_KEY

        return DISPATCH_KEY

    def get_compile_backend(self, mode: str | None = None) -> str:
        """Compiling helps nothing at these sizes and costs start time."""
        return "eager"


def _register_attention_backend() -> None:
    from sglang.srt.arg_groups import choices

    for names in (choices.ATTENTION_BACKEND_CHOICES, choices.DRAFT_ATTENTION_BACKEND_CHOICES):
        if ATTENTION_BACKEND not in names:
            names.append(ATTENTION_BACKEND)


def default_threads(ranks: int) -> int:
    """Threads a rank computes with: its share of the cores, less one for the server's other processes.

    A parallel region waits for its slowest thread, so a core that anything else uses costs more than it gives:
    on two cores two threads were up to 40 times slower than one whenever another process ran.
    """
    return max(1, len(os.sched_getaffinity(0)) // max(1, ranks) - 1)


def _cores_of_ranks(ranks: int) -> list[str]:
    cores = sorted(os.sched_getaffinity(0))
    return [",".join(map(str, cores[rank::ranks] or [cores[rank % len(cores)]])) for rank in range(ranks)]


def _create_attention_backend(runner: Any) -> Any:
    from specpilot_sglang.platform_cpu.attention import SdpaAttnBackend

    return SdpaAttnBackend(runner)
