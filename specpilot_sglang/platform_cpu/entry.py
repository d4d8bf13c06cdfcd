"""Decides, without importing SGLang, whether this process runs on the CPU reference platform."""

from __future__ import annotations

import os

from specpilot_sglang.errors import SpecPilotError

PLATFORM_NAME = "specpilot_cpu"
PLATFORM_CLASS = "specpilot_sglang.platform_cpu.platform:SpecPilotCpuPlatform"

_TRUE = {"1", "true", "yes", "on", "y", "t"}


def activate() -> str | None:
    """Return the platform class's qualified name, or None where this platform must stay out of the way.

    SGLang calls it once a process through the entry point group ``sglang.srt.platforms``. It answers with the
    class when ``SGLANG_PLATFORM=specpilot_cpu``, or when neither ``SGLANG_PLATFORM`` nor
    ``SGLANG_USE_CPU_ENGINE`` is set and no accelerator is visible.

    Raises:
        SpecPilotError: the platform was asked for by name while an accelerator is visible; SGLang would then mix
            CUDA code paths into a CPU server.
    """
    chosen = os.environ.get("SGLANG_PLATFORM", "")
    if chosen and chosen != PLATFORM_NAME:
        return None
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "").lower() in _TRUE:
        return None
    accelerator = visible_accelerator()
    if accelerator is None:
        return PLATFORM_CLASS
    if chosen:
        raise SpecPilotError(
            f"the CPU reference platform cannot run while {accelerator} is visible",
            where="SGLANG_PLATFORM",
            fix="set CUDA_VISIBLE_DEVICES='' (or your accelerator's equivalent) or unset SGLANG_PLATFORM",
        )
    return None


def visible_accelerator() -> str | None:
    """Name the first accelerator that torch can use in this process, or None."""
    import torch

    if torch.cuda.is_available():
        return "a ROCm GPU" if torch.version.hip else "a CUDA GPU"
    for name in ("xpu", "npu", "hpu", "musa", "mps"):
        module = getattr(torch, name, None)
        probe = getattr(module, "is_available", None)
        if callable(probe) and probe():
            return f"a {name} device"
    return None
