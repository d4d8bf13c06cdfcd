"""Turns a Llama-architecture GGUF file into a Hugging Face folder with BF16 weights.

Sources: GGUF key names and the `gguf` package's `dequantize`; llama.cpp stores the rows of the query and key
projections interleaved for its rotary kernel, Hugging Face keeps the two halves of each head apart.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specpilot_sglang.assets.gguf_tokenizer import write_tokenizer
from specpilot_sglang.errors import SpecPilotError

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def open_gguf(path: Path) -> GGUFReader:
    """Open a GGUF file; raise `SpecPilotError` if it cannot be read or the `gguf` package is missing."""
    try:
        from gguf import GGUFReader
    except ImportError as exc:
        raise SpecPilotError(
            "the package `gguf` is needed to read GGUF weights", fix="pip install 'specpilot-sglang[demo]'"
        ) from exc
    try:
        return GGUFReader(str(path))
    except (OSError, ValueError, IndexError) as exc:
        raise SpecPilotError(f"not a readable GGUF file ({exc})", where=path, fix="fetch it again") from exc


def metadata(reader: GGUFReader) -> dict[str, Any]:
    """Return the key-value header of a GGUF file as plain Python values."""
    return {key: field.contents() for key, field in reader.fields.items()}


def convert(gguf_path: Path, folder: Path) -> None:
    """Write config, generation config, tokenizer and BF16 safetensors for the model in `gguf_path`.

    Quantised blocks are expanded exactly to float32 and rounded once to BF16 (nearest even).
    """
    from safetensors.torch import save_file

    reader = open_gguf(gguf_path)
    meta = metadata(reader)
    if meta.get("general.architecture") != "llama":
        raise SpecPilotError(
            f"architecture {meta.get('general.architecture')!r} is not supported",
            where=gguf_path,
            fix="use a llama GGUF",
        )
    folder.mkdir(parents=True, exist_ok=True)
    heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    weights = {hf_name(t.name): _dequantise(t, heads, kv_heads) for t in reader.tensors}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes it for the owner only
    config = hf_config(meta, tied="lm_head.weight" not in weights)
    _dump(folder / "config.json", config)
    _dump(
        folder / "generation_config.json",
        {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")} | {"_from_model_config": True},
    )
    write_tokenizer(meta, folder)


def hf_name(name: str) -> str:
    """Map a GGUF tensor name to the Hugging Face Llama name, `blk.3.attn_q.weight` to `model.layers.3...`."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{_BLOCK[part]}.{kind}"


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's row interleaving of a query or key projection, `[heads * head_dim, in]`."""
    rows, cols = weight.shape
    half = rows // heads // 2
    return weight.reshape(heads, half, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def hf_config(meta: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """Build a `LlamaForCausalLM` config from GGUF metadata."""
    hidden, heads = meta["llama.embedding_length"], meta["llama.attention.head_count"]
    rope_theta = float(meta["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": round(float(meta["llama.attention.layer_norm_rms_epsilon"]), 9),
        "rope_theta": rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "use_cache": True,
    }


def _dequantise(tensor: Any, heads: int, kv_heads: int) -> torch.Tensor:
    import torch
    from gguf import dequantize

    values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    values = values.reshape([int(n) for n in reversed(tensor.shape)])  # GGUF lists the fastest axis first
    if ".attn_q." in tensor.name:
        values = unpermute(values, heads)
    elif ".attn_k." in tensor.name:
        values = unpermute(values, kv_heads)
    return torch.from_numpy(np.array(values, order="C")).to(torch.bfloat16)


def _dump(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
