"""Rebuilds a Hugging Face tokenizer (byte-level BPE) and its chat template from GGUF metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError

_CONTROL = 3  # llama.cpp's token type of special tokens

#: Pre-tokenisers we know, by the name in `tokenizer.ggml.pre`: whether digits are split one by one.
#: `smollm` in llama.cpp is the pair of expressions `\p{N}` and GPT-2's, so every digit stands alone.
_INDIVIDUAL_DIGITS = {"smollm": True, "gpt-2": False, "default": False}


def write_tokenizer(meta: dict[str, Any], folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` (with the chat template) into `folder`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, pre = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or pre not in _INDIVIDUAL_DIGITS:
        raise SpecPilotError(
            f"GGUF tokenizer {kind!r} with pre-tokeniser {pre!r} is not supported", fix="use a Hugging Face folder"
        )
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(line.split(" ", 1)) for line in meta["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, byte_fallback=False))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if _INDIVIDUAL_DIGITS[pre] else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, k in zip(tokens, meta["tokenizer.ggml.token_type"], strict=True) if k == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = _tokenizer_config(meta, tokens, special)
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _tokenizer_config(meta: dict[str, Any], tokens: list[str], special: list[str]) -> dict[str, Any]:
    # Not `GPT2Tokenizer`: that class builds its own pre-tokeniser and would merge digits.
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": bool(meta.get("tokenizer.ggml.add_space_prefix", False)),
        "add_bos_token": bool(meta.get("tokenizer.ggml.add_bos_token", False)),
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "additional_special_tokens": special,
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta["llama.context_length"],
        "chat_template": meta["tokenizer.chat_template"],
    }
