"""Server arguments of the three ways to decode: plain (AR), stock DFLASH, and DFLASH with the plugin."""

from __future__ import annotations

import json
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.plugin.deployment import gpu_name


def ar_args(model: Path | str, *, dtype: str = "bfloat16", max_running: int = 8) -> list[str]:
    """Return arguments of plain autoregressive decoding.

    The seed and the number of running requests are fixed so that the three servers differ in decoding only.
    """
    return [
        *("--model-path", str(model), "--dtype", dtype, "--random-seed", "0"),
        *("--max-running-requests", str(max_running), "--cuda-graph-max-bs-decode", str(max_running)),
    ]


def dflash_args(model: Path | str, draft: Path | str, *, dtype: str = "bfloat16", max_running: int = 8) -> list[str]:
    """Return arguments of stock block-parallel speculative decoding with the drafter in folder `draft`."""
    speculative = ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(draft)]
    return [*ar_args(model, dtype=dtype, max_running=max_running), *speculative]


def specpilot_args(
    model: Path | str,
    draft: Path | str,
    overlay: str | None,
    *,
    dtype: str = "bfloat16",
    max_running: int = 8,
) -> list[str]:
    """Return arguments of the plugin; `overlay` is a name or path, None picks the one that matches."""
    chosen = ["--specpilot-overlay", overlay] if overlay else []
    stock = dflash_args(model, draft, dtype=dtype, max_running=max_running)
    return [*stock, "--speculative-plugin", "specpilot", *chosen]


def float32_args() -> list[str]:
    """Return further arguments that float32 needs on a GPU: Hopper's default attention has no float32 kernel."""
    return [] if gpu_name() == "cpu" else ["--attention-backend", "triton"]


def block_size(draft: Path) -> int:
    """Return the number of tokens a parallel drafter proposes at once, the last committed one included."""
    path = draft / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return int(config.get("block_size") or config["dflash_config"]["block_size"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise SpecPilotError(
            f"not a DFlash drafter ({exc!r})", where=path, fix="give a folder with block_size"
        ) from exc
