"""Tiny seeded checkpoints of real architectures, with weights that W12 must escape planted where slices meet."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers

_COMMON = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _llama_tied() -> transformers.PreTrainedModel:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_COMMON, tie_word_embeddings=True))


def _qwen2_untied() -> transformers.PreTrainedModel:
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**_COMMON, tie_word_embeddings=False))


def _qwen3_5_hybrid() -> transformers.PreTrainedModel:
    from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        **_COMMON,
        head_dim=16,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        tie_word_embeddings=False,
    )
    return Qwen3_5ForCausalLM(config)


MODELS = {"llama-tied": _llama_tied, "qwen2-untied": _qwen2_untied, "qwen3_5-hybrid": _qwen3_5_hybrid}

#: What SGLang's own config class of an architecture needs beyond what transformers writes.
_SGLANG_NAMES = {"qwen3_5-hybrid": {"model_type": "qwen3_5_text", "full_attention_interval": 2}}


def plant_escapes(weight: torch.Tensor) -> None:
    """Put values outside every window at columns 0, K/2 - 1, K/2 and K - 1 of several rows, signed zeros too."""
    n, k = weight.shape
    for row in (0, n // 2 - 1, n // 2, n - 1):
        for column, value in zip((0, k // 2 - 1, k // 2, k - 1), (2.0**20, -(2.0**-60), -0.0, 1e-39), strict=True):
            weight[row, column] = value


def write_model(name: str, folder: Path) -> Path:
    """Write the model `name` of `MODELS`, seeded, in BF16; two shards, so that the index is used."""
    torch.manual_seed(7)
    model = MODELS[name]().bfloat16()
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() == 2:
                plant_escapes(tensor)
    model.save_pretrained(folder, max_shard_size="200KB")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **_SGLANG_NAMES.get(name, {})}))
    return folder
