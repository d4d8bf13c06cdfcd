"""Which algorithm a drafter needs, and whether it fits its target."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import PluginError
from specpilot_sglang.plugin.checkpoints import Checkpoint

#: Drafter architecture -> stock algorithm name (SGLang 0.5.23).
ALGORITHMS = {
    "DFlashDraftModel": "DFLASH",
    "DFlash2DraftModel": "DFLASH",
    "DSparkDraftModel": "DSPARK",
    "Qwen3DSparkModel": "DSPARK",
}


def algorithm_of(drafter: Checkpoint) -> str | None:
    """Return the stock algorithm that runs this drafter, None when we do not know the architecture."""
    return ALGORITHMS.get(drafter.architecture)


def check_drafter(target: Checkpoint, drafter: Checkpoint) -> None:
    """Refuse a drafter that cannot work with the target, before any weight is read.

    A wrong tap or vocabulary would not crash: acceptance would just be poor (vllm#42704).

    Raises:
        PluginError: names the drafter's file, the key, both values and the fix.
    """
    for key in ("hidden_size", "vocab_size"):
        _same(target, drafter, key, key)
    _same(target, drafter, "num_hidden_layers", "num_target_layers")
    if algorithm_of(drafter) == "DFLASH":
        _check_dflash(target, drafter)


def _same(target: Checkpoint, drafter: Checkpoint, target_key: str, drafter_key: str) -> None:
    want, have = target.number(target_key), drafter.number(drafter_key)
    if want is not None and have is not None and want != have:
        raise PluginError(
            f"{drafter_key} is {have}, but the target's {target_key} is {want} ({target.where})",
            where=f"{drafter.where}:{drafter_key}",
            fix="use the drafter that was trained for this target",
        )


def _check_dflash(target: Checkpoint, drafter: Checkpoint) -> None:
    section = drafter.config.get("dflash_config")
    dflash: dict[str, Any] = section if isinstance(section, dict) else {}
    taps = dflash.get("target_layer_ids", drafter.config.get("target_layer_ids"))
    layers = target.number("num_hidden_layers")
    if taps is not None:
        valid = isinstance(taps, list) and taps and all(isinstance(t, int) and not isinstance(t, bool) for t in taps)
        if not valid or sorted(set(taps)) != taps:
            raise _bad(drafter, "target_layer_ids", f"must be a rising list of layer numbers, not {taps}")
        # SGLang hooks the input of layer tap + 1, so the last layer cannot be tapped.
        if layers is not None and not 0 <= taps[0] <= taps[-1] < layers - 1:
            raise _bad(drafter, "target_layer_ids", f"{taps} does not fit the target's {layers} layers")
        _check_fc(target, drafter, len(taps))
    vocab, mask = target.number("vocab_size"), dflash.get("mask_token_id")
    if isinstance(mask, int) and vocab is not None and not 0 <= mask < vocab:
        raise _bad(drafter, "mask_token_id", f"{mask} is outside the target's vocabulary of {vocab}")
    block = dflash.get("block_size", drafter.config.get("block_size"))
    if block is not None and (not isinstance(block, int) or block < 2):
        raise _bad(drafter, "block_size", f"must be an integer of at least 2, not {block!r}")


def _check_fc(target: Checkpoint, drafter: Checkpoint, taps: int) -> None:
    """Compare the fusing projection `fc` [H, taps * H] with the header of the drafter's weight file."""
    hidden, shape = target.number("hidden_size"), _shape(Path(drafter.where).parent / "model.safetensors", "fc.weight")
    if hidden is not None and shape is not None and shape[1] != taps * hidden:
        raise _bad(
            drafter,
            "target_layer_ids",
            f"{taps} taps of width {hidden} make {taps * hidden} inputs, but fc.weight has {shape[1]}",
        )


def _shape(file: Path, tensor: str) -> list[int] | None:
    try:
        with file.open("rb") as handle:
            (size,) = struct.unpack("<Q", handle.read(8))
            shape = json.loads(handle.read(min(size, 1 << 26)))[tensor]["shape"]
    except (OSError, ValueError, KeyError, struct.error):
        return None  # sharded or unusual files: SGLang's own loader checks shapes
    return shape if isinstance(shape, list) and len(shape) == 2 else None


def _bad(drafter: Checkpoint, key: str, what: str) -> PluginError:
    return PluginError(what, where=f"{drafter.where}:{key}", fix="use the drafter that was trained for this target")
