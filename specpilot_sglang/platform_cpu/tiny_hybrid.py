"""Writes a tiny hybrid Gated DeltaNet model (Qwen3.5 text architecture) with seeded random weights, for tests.

The weights are random: no figure of speed or acceptance taken with it says anything about a real model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCAB = 256
HIDDEN = 64
LAYERS = 4
#: Token ids that greedy decoding ever emits.
LIVE_TOKENS = slice(8, 12)


def hybrid_config() -> dict[str, Any]:
    """`config.json` of the target: three linear-attention layers, then one of full attention."""
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "partial_rotary_factor": 0.25,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "attn_output_gate": True,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def write_hybrid(folder: Path, seed: int = 0) -> Path:
    """Write config.json and model.safetensors (float32) of the target; returns the folder."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: _init(name, shape, generator) for name, shape in _hybrid_shapes(hybrid_config()).items()}
    # Few tokens ever win, so that a random drafter guesses right often enough to reach every accept length.
    quiet = torch.ones(VOCAB, dtype=torch.bool)
    quiet[LIVE_TOKENS] = False
    tensors["lm_head.weight"][quiet] *= 1e-3
    return _write(folder, hybrid_config(), tensors)


def write_drafter(folder: Path, block_size: int = 4, seed: int = 1) -> Path:
    """Write a two-layer DFlash drafter with random weights for the target above; returns the folder."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "num_target_layers": LAYERS,
        "block_size": block_size,
        "dflash_config": {"block_size": block_size, "mask_token_id": 2, "target_layer_ids": [0, 2]},
    }
    generator = torch.Generator().manual_seed(seed)
    return _write(folder, config, {n: _init(n, s, generator) for n, s in _drafter_shapes().items()})


def _hybrid_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    inner, vocab = config["intermediate_size"], config["vocab_size"]
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    key = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    v_heads = config["linear_num_value_heads"]
    value = v_heads * config["linear_value_head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (vocab, HIDDEN),
    }
    for i, kind in enumerate(config["layer_types"]):
        layer = f"model.layers.{i}."
        shapes |= {layer + "input_layernorm.weight": (HIDDEN,), layer + "post_attention_layernorm.weight": (HIDDEN,)}
        shapes |= _mlp_shapes(layer, inner)
        if kind == "full_attention":
            attn = layer + "self_attn."
            shapes |= {
                attn + "q_proj.weight": (2 * heads * dim, HIDDEN),
                attn + "k_proj.weight": (kv_heads * dim, HIDDEN),
                attn + "v_proj.weight": (kv_heads * dim, HIDDEN),
                attn + "o_proj.weight": (HIDDEN, heads * dim),
                attn + "q_norm.weight": (dim,),
                attn + "k_norm.weight": (dim,),
            }
        else:
            attn = layer + "linear_attn."
            shapes |= {
                attn + "in_proj_qkv.weight": (2 * key + value, HIDDEN),
                attn + "in_proj_z.weight": (value, HIDDEN),
                attn + "in_proj_b.weight": (v_heads, HIDDEN),
                attn + "in_proj_a.weight": (v_heads, HIDDEN),
                attn + "conv1d.weight": (2 * key + value, 1, config["linear_conv_kernel_dim"]),
                attn + "A_log": (v_heads,),
                attn + "dt_bias": (v_heads,),
                attn + "norm.weight": (config["linear_value_head_dim"],),
                attn + "out_proj.weight": (HIDDEN, value),
            }
    return shapes


def _mlp_shapes(layer: str, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        layer + "mlp.gate_proj.weight": (inner, HIDDEN),
        layer + "mlp.up_proj.weight": (inner, HIDDEN),
        layer + "mlp.down_proj.weight": (HIDDEN, inner),
    }


def _drafter_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, 2 * HIDDEN),
        "hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
    }
    for i in range(2):
        layer = f"layers.{i}."
        attn = layer + "self_attn."
        shapes |= {layer + "input_layernorm.weight": (HIDDEN,), layer + "post_attention_layernorm.weight": (HIDDEN,)}
        shapes |= _mlp_shapes(layer, 96)
        shapes |= {
            attn + "q_proj.weight": (64, HIDDEN),
            attn + "k_proj.weight": (32, HIDDEN),
            attn + "v_proj.weight": (32, HIDDEN),
            attn + "o_proj.weight": (HIDDEN, 64),
            attn + "q_norm.weight": (16,),
            attn + "k_norm.weight": (16,),
        }
    return shapes


def _init(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("A_log"):
        # Decays between about 0.4 and 0.999 a token, so that old tokens still matter.
        return torch.linspace(-6.0, 0.0, shape[0]) + 0.1 * noise
    if name.endswith("dt_bias"):
        return 0.1 * noise
    if len(shape) == 1:
        # Qwen3.5 stores its norms' weights minus one, but not the gated norm's; drafters store them whole.
        whole = "linear_attn.norm" in name or not name.startswith("model.")
        return 0.1 * noise + (1.0 if whole else 0.0)
    fan_in = shape[-1]
    return noise * (1.0 if "embed" in name else fan_in**-0.5)


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
