"""Fills server arguments in from the overlay; the user's own flags win."""

from __future__ import annotations

from typing import Any

from specpilot_sglang.errors import PluginError
from specpilot_sglang.overlay import LoadedOverlay
from specpilot_sglang.plugin.checkpoints import Checkpoint
from specpilot_sglang.plugin.drafter import algorithm_of


def planned_arguments(
    server_args: Any, loaded: LoadedOverlay, target: Checkpoint, drafter: Checkpoint | None
) -> dict[str, Any]:
    """Return the arguments that this overlay wants, by `ServerArgs` field.

    Raises:
        PluginError: the drafter's algorithm is unknown, or W12 was asked for a quantised checkpoint or LoRA.
    """
    wanted: dict[str, Any] = loaded.overlay.server_args.model_dump(exclude_none=True)
    if drafter is not None and server_args.speculative_algorithm is None:
        wanted["speculative_algorithm"] = _algorithm(drafter)
    if loaded.overlay.weights.format == "w12":
        _check_w12(server_args, target)
        wanted["quantization"] = "w12"
    if "w12" in (wanted.get("quantization"), server_args.quantization) and drafter is not None:
        # SGLang would hand the target's method down, and DFlash's fused draft-KV path needs plain weights.
        wanted["speculative_draft_model_quantization"] = "unquant"
    return wanted


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


def _check_w12(server_args: Any, target: Checkpoint) -> None:
    found = target.config.get("quantization_config") or target.text.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, dict) else None
    if found and method != "w12":
        raise PluginError(
            f"the overlay wants W12 weights, but this checkpoint is quantised already ({method})",
            where=f"{target.where}:quantization_config",
            fix="use the BF16 checkpoint, or an overlay with weights.format bf16",
        )
    if server_args.quantization not in (None, "w12"):
        raise PluginError(
            f"the overlay wants W12 weights, but --quantization {server_args.quantization} was given",
            fix="drop --quantization, or use an overlay with weights.format bf16",
        )
    if server_args.enable_lora or server_args.lora_paths:
        raise PluginError(
            "W12 weights cannot take LoRA adapters",
            fix="drop --enable-lora and --lora-paths, or use weights.format bf16",
        )
