"""Makes SGLang know `--quantization w12` and packed checkpoints, and takes it back.

Imports SGLang only when called, so that the command line can name this module without starting it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from specpilot_sglang import SGLANG_VERSION
from specpilot_sglang.patching import AppliedPatch, Kind, Patch, PatchSet
from specpilot_sglang.w12.checkpoint import QUANT_METHOD
from specpilot_sglang.w12.spec import DEFAULT_MAX_BITS
from specpilot_sglang.w12.stats import STATS

_patches: PatchSet | None = None
_applied: list[AppliedPatch] = []


def register(*, max_bits: float | None = None, exclude: Sequence[str] = ()) -> list[AppliedPatch]:
    """Add the method `w12` to SGLang in this process; a second call only changes the settings.

    Call before SGLang parses its arguments (its choices are checked then) and in every worker process.

    Args:
        max_bits: layers that need more bits per weight stay BF16; None means the default, 12.25.
        exclude: layers whose name contains one of these stay BF16.

    Returns:
        The patches, for the attestation.

    Raises:
        PatchDriftError: SGLang's weights iterator is not the known one.
    """
    global _patches, _applied
    from sglang.srt.arg_groups.choices import QUANTIZATION_CHOICES, add_quantization_method_choices
    from sglang.srt.layers.quantization import QUANTIZATION_METHODS

    from specpilot_sglang.w12.method import W12Config

    W12Config.max_bits = DEFAULT_MAX_BITS if max_bits is None else max_bits
    W12Config.exclude = tuple(exclude)
    if _patches is None:
        patches = PatchSet([_decode_while_loading()], SGLANG_VERSION)
        _applied = patches.apply()
        _patches = patches
        QUANTIZATION_METHODS[QUANT_METHOD] = W12Config
        if QUANT_METHOD not in QUANTIZATION_CHOICES:
            add_quantization_method_choices([QUANT_METHOD])
    return list(_applied)


def unregister() -> None:
    """Put SGLang back as it was; harmless when nothing is registered."""
    global _patches
    if _patches is None:
        return
    from sglang.srt.arg_groups.choices import QUANTIZATION_CHOICES
    from sglang.srt.layers.quantization import QUANTIZATION_METHODS

    from specpilot_sglang.w12 import late_patches

    late_patches.uninstall()
    _patches.undo()
    _patches = None
    QUANTIZATION_METHODS.pop(QUANT_METHOD, None)
    if QUANT_METHOD in QUANTIZATION_CHOICES:
        QUANTIZATION_CHOICES.remove(QUANT_METHOD)


def report() -> dict[str, Any]:
    """Return what W12 did in this process, of JSON values only (see `stats.LoadStats.summary`).

    `hits` of the attestation holds `w12_linear_calls`, host-side calls of packed layers (eager ones, and one a layer
    for each graph captured), and `w12_graph_replays`, replays of such graphs.
    """
    from specpilot_sglang.w12 import late_patches

    return {**STATS.summary(), "late_patches": late_patches.targets()}


def layer_bits() -> dict[str, float]:
    """Return the stored bits per weight of each linear layer of this rank, kept ones included."""
    return {name: record.bits_per_weight for name, record in STATS.layers.items()}


def _decode_while_loading() -> Patch:
    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
        import torch

        from specpilot_sglang.w12.guards import server_setting
        from specpilot_sglang.w12.stream import decode_stream

        on_gpu = server_setting("device") == "cuda"
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else None
        return decode_stream(original(*args, **kwargs), device)

    return Patch(
        "sglang.srt.model_loader.loader:DefaultModelLoader._get_weights_iterator",
        Kind.AROUND,
        around,
        "6c15410d06206311",
        "decodes packed W12 tensors before the model's own loader sees them",
    )
