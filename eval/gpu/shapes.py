"""Config folders for serving a model's shape with random weights.

A folder made here holds a `config.json` and no weights: SGLang serves it with `--load-format dummy
--skip-tokenizer-init`. Speed and memory of such a server are those of the real model; its text and its
acceptance are not, so every number taken from one carries the labels "random weights" and, where acceptance is
forced, "simulated acceptance".

Sources of the numbers: the linear shapes of Qwen3.8-27B (14336x5120, 5120x6144, 16384x5120, 96x5120, 34816x5120,
5120x17408, 248320x5120), which fix every head count below; SGLang's `Qwen3_5TextConfig`; the published DFlash2
settings (block 8, 5 layers, taps after 5, 19, 33, 47, 61; two taps in groups of 16; selector rank 256, top 16).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

QWEN3_8_27B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "full_attention_interval": 4,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "attn_output_gate": True,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}

# Attention heads and feed-forward width follow the target's published DFlash drafter (3.46 GB in BF16); the
# selector's two code books and the convolutions' projections bring this one to 3.85 GB.
QWEN3_8_27B_DFLASH2: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000},
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "num_target_layers": 64,
    "block_size": 8,
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": 248077,
        "target_layer_ids": [5, 19, 33, 47, 61],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    },
}

# The first-generation drafter of the same size: no convolutions and no selector, so nvcc has nothing to build for it.
QWEN3_8_27B_DFLASH: dict[str, Any] = {
    **QWEN3_8_27B_DFLASH2,
    "architectures": ["DFlashDraftModel"],
    "dflash_config": {"block_size": 8, "mask_token_id": 248077, "target_layer_ids": [5, 19, 33, 47, 61]},
}

# Half the depth: room for many requests of two servers on one GPU, with the cost of a layer unchanged.
QWEN3_8_27B_HALF: dict[str, Any] = {**QWEN3_8_27B, "num_hidden_layers": 32}
_HALF_DRAFTER: dict[str, Any] = {"num_target_layers": 32}
_HALF_TAPS = [3, 9, 15, 21, 29]
QWEN3_8_27B_HALF_DFLASH: dict[str, Any] = {
    **QWEN3_8_27B_DFLASH,
    **_HALF_DRAFTER,
    "dflash_config": {**QWEN3_8_27B_DFLASH["dflash_config"], "target_layer_ids": _HALF_TAPS},
}
QWEN3_8_27B_HALF_DFLASH2: dict[str, Any] = {
    **QWEN3_8_27B_DFLASH2,
    **_HALF_DRAFTER,
    "dflash_config": {**QWEN3_8_27B_DFLASH2["dflash_config"], "target_layer_ids": _HALF_TAPS},
}
QWEN3_8_27B_HALF_DSPARK: dict[str, Any] = {
    **QWEN3_8_27B_HALF_DFLASH,
    "architectures": ["DSparkDraftModel"],
    "block_size": 7,  # of a DSpark drafter: draft tokens, the committed one not counted
    "markov_rank": 256,
    "markov_head_type": "vanilla",
    "enable_confidence_head": False,
    "dflash_config": {**QWEN3_8_27B_HALF_DFLASH["dflash_config"], "block_size": 7},
}

# Same structure, small enough for a rehearsal without a GPU (4 layers, 3 of them Gated DeltaNet).
TINY_TARGET: dict[str, Any] = {
    **QWEN3_8_27B,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}
TINY_DFLASH2: dict[str, Any] = {
    **QWEN3_8_27B_DFLASH2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "num_target_layers": 4,
    "dflash_config": {
        **QWEN3_8_27B_DFLASH2["dflash_config"],
        "mask_token_id": 500,
        "target_layer_ids": [0, 2],
        "selector_rank": 8,
        "selector_top_k": 4,
    },
}

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3.8-27b": QWEN3_8_27B,
    "qwen3.8-27b-dflash": QWEN3_8_27B_DFLASH,
    "qwen3.8-27b-dflash2": QWEN3_8_27B_DFLASH2,
    "qwen3.8-27b-half": QWEN3_8_27B_HALF,
    "qwen3.8-27b-half-dflash": QWEN3_8_27B_HALF_DFLASH,
    "qwen3.8-27b-half-dflash2": QWEN3_8_27B_HALF_DFLASH2,
    "qwen3.8-27b-half-dspark": QWEN3_8_27B_HALF_DSPARK,
    "tiny-hybrid": TINY_TARGET,
    "tiny-hybrid-dflash2": TINY_DFLASH2,
}


def write_shape(name: str, folder: Path) -> Path:
    """Write the `config.json` of the shape `name` (a key of `SHAPES`) into `folder` and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPES[name], indent=1) + "\n", encoding="utf-8")
    return folder


def linear_shapes(target: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the merged linear layers of a Qwen3_5 text config as `name -> (rows, columns)`, as SGLang builds them."""
    hidden, ffn = target["hidden_size"], target["intermediate_size"]
    query = target["num_attention_heads"] * target["head_dim"]
    kv = target["num_key_value_heads"] * target["head_dim"]
    key = target["linear_num_key_heads"] * target["linear_key_head_dim"]
    value = target["linear_num_value_heads"] * target["linear_value_head_dim"]
    return {
        "qkv_proj": (2 * query + 2 * kv, hidden),  # the query carries its output gate
        "o_proj": (hidden, query),
        "in_proj_qkvz": (2 * key + 2 * value, hidden),
        "in_proj_ba": (2 * target["linear_num_value_heads"], hidden),
        "out_proj": (hidden, value),
        "gate_up_proj": (2 * ffn, hidden),
        "down_proj": (hidden, ffn),
        "lm_head": (target["vocab_size"], hidden),
    }
