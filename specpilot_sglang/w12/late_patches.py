"""Patches of SGLang that only matter once packed weights exist: applied when the first one is made, not at start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specpilot_sglang import SGLANG_VERSION
from specpilot_sglang.patching import AppliedPatch, Kind, Patch, PatchSet
from specpilot_sglang.plugin import counters
from specpilot_sglang.w12.placeholder import PackedParameter

#: Replays of a captured decode graph of the target; each runs every packed layer's kernel once.
REPLAYS = "w12_graph_replays"
_RUNNER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner.execute"
_DIRECT = "sglang.srt.model_executor.model_runner_components.weight_updater:_model_load_weights_direct"

_installed: PatchSet | None = None
_applied: list[AppliedPatch] = []


def install(*, graphs: bool) -> None:
    """Apply the patches once in this process.

    Args:
        graphs: count replays of CUDA graphs too.

    Raises:
        PatchDriftError: SGLang's source is not the known one.
    """
    global _installed, _applied
    if _installed is not None:
        return
    patches = [Patch(_DIRECT, Kind.AROUND, load_direct, "755fbf7780f27fd5", "direct updates fill packed weights too")]
    if graphs:
        counters.declare(REPLAYS)
        why = "counts replays of graphs that hold the kernel"
        patches.append(Patch(_RUNNER, Kind.AROUND, _count, "f9c92ef253ef439d", why))
    _installed = PatchSet(patches, SGLANG_VERSION)
    _applied = _installed.apply()


def uninstall() -> None:
    """Put SGLang back as it was; harmless when nothing is installed."""
    global _installed, _applied
    if _installed is not None:
        _installed.undo()
    _installed, _applied = None, []


def targets() -> list[str]:
    """Return the symbols that are patched now."""
    return [patch.target for patch in _applied]


def load_direct(original: Callable[..., None], model: Any, named_tensors: list[tuple[str, Any]]) -> None:
    """Write whole parameters under their own names, as `load_format="direct"` does; packed ones are encoded again."""
    parameters = dict(model.named_parameters())
    packed = {n: p for n, _ in named_tensors if isinstance(p := parameters.get(n), PackedParameter)}
    for name, tensor in named_tensors:
        if name in packed:
            with packed[name].resident.filling() as buffer:
                if buffer.shape != tensor.shape:
                    raise ValueError(f"{name} has shape {tuple(buffer.shape)}, not {tuple(tensor.shape)}")
                buffer.copy_(tensor)
    original(model, [(name, tensor) for name, tensor in named_tensors if name not in packed])


def _count(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    if not runner.model_runner.is_draft_worker:
        counters.hit(REPLAYS)
    return original(runner, *args, **kwargs)
