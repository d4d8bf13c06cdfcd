"""Server settings that W12 refuses at start, and LM heads that stay BF16 because something reads them as a matrix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import W12Error

#: `--load-format` values whose tensors pass through the decoder, or that load no checkpoint tensors at all.
_DECODED = {"auto", "safetensors", "fastsafetensors", "instanttensor", "layered", "presharded", "dummy"}
#: Those that fill a layer through its own `weight_loader`, or (dummy) give it plain weights, as packed weights need.
_FILLED = {"auto", "safetensors", "fastsafetensors", "instanttensor", "pt", "npcache", "mistral", "dummy"}


def refuse_unsupported(packed: bool, kernel: bool) -> None:
    """Refuse server settings that W12 does not serve.

    Args:
        packed: the checkpoint itself is W12.
        kernel: weights stay packed in memory for a kernel to read.

    Raises:
        W12Error: names the flag and the way out.
    """
    if server_setting("enable_lora") or server_setting("lora_paths"):
        raise W12Error(
            "W12 weights cannot take LoRA adapters", where="--quantization w12", fix="drop the LoRA flags or w12"
        )
    load_format = server_setting("load_format")
    name = getattr(load_format, "value", load_format)
    allowed = _DECODED if packed else _FILLED
    if (packed and name is not None and name not in _DECODED) or (kernel and name is not None and name not in _FILLED):
        allowed = (_DECODED & _FILLED) if packed and kernel else allowed
        raise W12Error(
            f"a W12 {'checkpoint' if packed else 'server'} cannot be loaded with --load-format {name}",
            where="--load-format",
            fix=f"use one of {', '.join(sorted(allowed))}",
        )
    if kernel:
        _refuse_movers()


def _refuse_movers() -> None:
    """Refuse whatever moves or releases weights behind a captured graph's back."""
    movers = {
        "--cpu-offload-gb": server_setting("cpu_offload_gb"),
        "--offload-group-size": (server_setting("offload_group_size") or 0) > 0,
        "--enable-memory-saver": server_setting("enable_memory_saver"),
        "--weight-cache-mode": server_setting("weight_cache_mode") not in (None, "off"),
        "--torchao-config": server_setting("torchao_config"),
    }
    for flag, used in movers.items():
        if used:
            raise W12Error(
                f"packed W12 weights cannot be served with {flag}",
                where="--quantization w12",
                fix=f"drop {flag}, or serve BF16 weights",
            )


def head_reader() -> str:
    """Return what reads the LM head's weight as a plain matrix in this server, empty when nothing does.

    The logits of plain decoding and the candidates of DFlash2's selector go through the head's quantization method;
    other drafters' samplers multiply by `lm_head.weight` itself.
    """
    if server_setting("enable_fp32_lm_head"):
        return "--enable-fp32-lm-head multiplies by the BF16 head"
    if server_setting("rl_on_policy_target"):
        return "--rl-on-policy-target multiplies by the BF16 head"
    algorithm = server_setting("speculative_algorithm")
    if algorithm and not (str(algorithm).upper() == "DFLASH" and _drafter_selects()):
        return f"the {algorithm} drafter's sampler multiplies by the BF16 head"
    return ""


def _drafter_selects() -> bool:
    path = server_setting("speculative_draft_model_path")
    try:
        config = json.loads((Path(str(path)).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    holder = config.get("dflash_config") if isinstance(config, dict) else None
    return isinstance(holder, dict) and bool(holder.get("selector_rank"))


def server_setting(name: str) -> Any:
    """Return a server argument, or None outside a server."""
    from sglang.srt.runtime_context import get_server_args

    try:
        server_args = get_server_args()
    except ValueError:
        return None
    return getattr(server_args, name, None)
