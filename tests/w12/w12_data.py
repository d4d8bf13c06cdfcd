"""Bit patterns, and small checkpoints on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

ALL_PATTERNS = np.arange(1 << 16, dtype=np.uint16)


def bf16(bits: np.ndarray) -> torch.Tensor:
    """View uint16 bit patterns as a BF16 tensor (shares memory)."""
    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16)


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """View a BF16 tensor as uint16 bit patterns."""
    return tensor.contiguous().view(torch.int16).numpy().view(np.uint16)


def gaussian(n: int, k: int, seed: int = 0, scale: float = 0.02) -> torch.Tensor:
    """Weights as trained matrices have them: Gaussian, BF16, seeded."""
    return (torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * scale).bfloat16()


def write_checkpoint(
    folder: Path,
    shards: Sequence[dict[str, torch.Tensor]],
    *,
    config: dict | None = None,
    index: bool | None = None,
) -> Path:
    """Write a model folder with safetensors' own writer: one file, or shards and an index."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "test", "hidden_size": 64}, indent=1))
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "sub").mkdir()
    (folder / "sub" / "more.json").write_text("{}")
    count = len(shards)
    names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    if count == 1:
        names = ["model.safetensors"]
    for name, tensors in zip(names, shards, strict=True):
        save_file(tensors, folder / name, metadata={"format": "pt"})
    if index if index is not None else count > 1:
        weight_map = {t: name for name, tensors in zip(names, shards, strict=True) for t in tensors}
        text = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(text)
    return folder


def mixed_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors of every kind that a checkpoint may hold."""
    generator = torch.Generator().manual_seed(seed)
    special = gaussian(130, 96, seed)
    special[0] = 0.0
    special[1, 5] = float("inf")
    special[2, 7] = float("nan")
    special[3, ::3] = -0.0
    special[4] = 1.0
    special[129, 95] = 3e38
    return {
        "model.embed.weight": gaussian(300, 96, seed + 1),
        "model.layers.0.special.weight": special,
        "model.layers.0.odd.weight": gaussian(257, 333, seed + 2),
        "model.layers.0.norm.weight": torch.ones(96, dtype=torch.bfloat16),
        "model.layers.0.conv1d.weight": gaussian(96, 4, seed + 3).reshape(96, 1, 4),
        "model.layers.0.experts": gaussian(8 * 64, 96, seed + 4).reshape(8, 64, 96),
        "model.layers.0.random_bits": bf16(np.random.default_rng(seed).integers(0, 1 << 16, (64, 96), np.uint16)),
        "model.layers.0.A_log": torch.rand(16, generator=generator),
        "model.layers.0.half": torch.randn(32, 64, generator=generator).half(),
        "model.layers.0.fp8": torch.randn(32, 64, generator=generator).to(torch.float8_e4m3fn),
        "model.layers.0.odd_bytes": torch.arange(7, dtype=torch.uint8),
        "model.layers.0.ids": torch.arange(12).reshape(3, 4),
        "model.layers.0.empty": torch.zeros(0, 64, dtype=torch.bfloat16),
    }
