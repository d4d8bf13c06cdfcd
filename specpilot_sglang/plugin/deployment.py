"""Describes the deployment that an overlay must match, and refuses modes the plugin cannot serve."""

from __future__ import annotations

import os
from typing import Any

from specpilot_sglang import SGLANG_VERSION
from specpilot_sglang.errors import PluginError
from specpilot_sglang.overlay import Deployment
from specpilot_sglang.plugin.checkpoints import Checkpoint, read_checkpoint


def read_models(server_args: Any) -> tuple[Checkpoint, Checkpoint | None]:
    """Read the configs of target and drafter that the server was told to use."""
    target = read_checkpoint(server_args.model_path, "--model-path", server_args.revision)
    path = server_args.speculative_draft_model_path
    if path is None:
        return target, None
    return target, read_checkpoint(path, "--speculative-draft-model-path", server_args.speculative_draft_model_revision)


def describe(target: Checkpoint, drafter: Checkpoint | None, device: str | None = None) -> Deployment:
    """Return the deployment of these models on this machine."""
    return Deployment(
        target=target.architecture,
        drafter=drafter.architecture if drafter else None,
        gpu=gpu_name(device),
        sglang=SGLANG_VERSION,
    )


def gpu_name(device: str | None = None) -> str:
    """Return the first GPU's product name, `cpu` where there is none or another platform was chosen.

    NVML is asked, not torch, so that the launching process makes no CUDA context.
    """
    index = _first_visible()
    if device == "cpu" or os.environ.get("SGLANG_PLATFORM") == "specpilot_cpu" or index is None:
        return "cpu"
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return "cpu"
    return name.decode() if isinstance(name, bytes) else str(name)


def _first_visible() -> int | None:
    """Return the NVML index of the first GPU that CUDA may use; None where an empty list or -1 hides them all."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if first.isdigit():
        return int(first)
    return None if first in ("", "-1") else 0  # a UUID: one host has GPUs of one kind


def refuse_unsupported(server_args: Any) -> None:
    """Refuse launch modes in which attestation would be missing or a mechanism untested.

    Raises:
        PluginError: names the flag and what to change.
    """
    refusals = {
        "--use-ray": server_args.use_ray,
        "--tokenizer-worker-num > 1": server_args.tokenizer_worker_num > 1,
        "--grpc-mode": server_args.grpc_mode or server_args.smg_grpc_mode,
        "--encoder-only": server_args.encoder_only,
        "SGLANG_RUST_SERVER": os.environ.get("SGLANG_RUST_SERVER", "") not in ("", "0", "false", "False"),
    }
    for flag, used in refusals.items():
        if used:
            raise PluginError(
                f"the plugin cannot attest what it does under {flag}",
                fix=f"drop {flag}, or drop --speculative-plugin to serve stock",
            )
