"""Fills server arguments in from the overlay; the user's own flags win."""

from __future__ import annotations

from typing import Any

from specpilot_sglang.errors import PluginError
from specpilot_sglang.overlay import Overlay
from specpilot_sglang.plugin.checkpoints import Checkpoint
from specpilot_sglang.plugin.drafter import algorithm_of


def planned_arguments(
    server_args: Any, overlay: Overlay | None, target: Checkpoint, drafter: Checkpoint | None
) -> dict[str, Any]:
    """Return the arguments that this overlay wants, by `ServerArgs` field.

    Raises:
        PluginError: the drafter's algorithm is unknown, or W12 was asked for a quantised checkpoint or with LoRA.
    """
    wanted: dict[str, Any] = overlay.server_args.model_dump(exclude_none=True) if overlay else {}
    if drafter is not None and server_args.speculative_algorithm is None:
        wanted["speculative_algorithm"] = _algorithm(drafter)
    if uses_w12(server_args, overlay, target):
        _check_w12(server_args, target)
        wanted["quantization"] = "w12"
        if drafter is not None:
            # SGLang would hand the target's method down, and DFlash's fused draft-KV path needs plain weights.
            wanted["speculative_draft_model_quantization"] = "unquant"
    return wanted


def uses_w12(server_args: Any, overlay: Overlay | None, target: Checkpoint) -> bool:
    """Tell whether the target's weights are W12: by overlay, by `--quantization w12`, or packed on disk."""
    by_overlay = overlay is not None and overlay.weights.format == "w12"
    return by_overlay or server_args.quantization == "w12" or _quant_method(target) == "w12"


def fill(server_args: Any, wanted: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write `wanted` into fields that still hold SGLang's default.

    Returns:
        The arguments that were written, and those that the user's own value replaced.
    """
    from sglang.srt.server_args import ServerArgs

    defaults = ServerArgs(model_path="")
    applied: dict[str, Any] = {}
    overridden: dict[str, Any] = {}
    for name, value in wanted.items():
        current = getattr(server_args, name)
        if current == value:
            applied[name] = value
        elif current == getattr(defaults, name):
            setattr(server_args, name, value)
            applied[name] = value
        else:
            overridden[name] = current
    return applied, overridden


def _algorithm(drafter: Checkpoint) -> str:
    algorithm = algorithm_of(drafter)
    if algorithm is None:
        raise PluginError(
            f"no algorithm is known for the drafter architecture {drafter.architecture}",
            where=f"{drafter.where}:architectures",
            fix="name it with --speculative-algorithm",
        )
    return algorithm


def _quant_method(target: Checkpoint) -> str | None:
    found = target.config.get("quantization_config") or target.text.get("quantization_config")
    return str(found.get("quant_method")) if isinstance(found, dict) else None


def _check_w12(server_args: Any, target: Checkpoint) -> None:
    method = _quant_method(target)
    if method not in (None, "w12"):
        raise PluginError(
            f"W12 weights were asked for, but this checkpoint is quantised already ({method})",
            where=f"{target.where}:quantization_config",
            fix="use the BF16 checkpoint, or an overlay with weights.format bf16",
        )
    if server_args.quantization not in (None, "w12"):
        raise PluginError(
            f"W12 weights were asked for, but so was --quantization {server_args.quantization}",
            fix="drop --quantization, or use an overlay with weights.format bf16",
        )
    if server_args.enable_lora or server_args.lora_paths:
        raise PluginError(
            "W12 weights cannot take LoRA adapters",
            fix="drop --enable-lora and --lora-paths, or use weights.format bf16",
        )
