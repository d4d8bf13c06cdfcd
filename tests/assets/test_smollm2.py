"""The converted SmolLM2 is the model the drafter was trained for: tokenizer, template, weights, first answer."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from specpilot_sglang.assets import drafter_path
from specpilot_sglang.assets.gguf_llama import hf_name, unpermute
from specpilot_sglang.assets.gguf_tokenizer import write_tokenizer
from specpilot_sglang.assets.smollm2 import WEIGHTS_SHA256, weights_digest
from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval import suites
from specpilot_sglang.eval.prompts import encode, load_tokenizer

QUESTION = suites.Item("france", "", "What is the capital of France?")


def test_unpermute_is_the_inverse_of_llama_cpps_order():
    heads, half, cols = 3, 4, 5
    weight = np.arange(heads * 2 * half * cols).reshape(heads * 2 * half, cols)
    # llama.cpp: [head, 2, half] -> [head, half, 2]
    stored = weight.reshape(heads, 2, half, cols).swapaxes(1, 2).reshape(weight.shape)
    assert not np.array_equal(stored, weight)
    assert np.array_equal(unpermute(stored, heads), weight)


def test_tensor_names():
    assert hf_name("blk.29.ffn_gate.weight") == "model.layers.29.mlp.gate_proj.weight"
    assert hf_name("output_norm.weight") == "model.norm.weight"


def test_unknown_pre_tokeniser_is_refused(tmp_path):
    with pytest.raises(SpecPilotError, match="pre-tokeniser 'qwen2'"):
        write_tokenizer({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}, tmp_path)


def test_tokenizer_is_byte_level_with_single_digits_and_the_default_system_prompt(smollm2):
    tokenizer = load_tokenizer(smollm2)
    assert tokenizer.tokenize("It's 123 x1\n") == ["It", "'s", "Ġ", "1", "2", "3", "Ġx", "1", "Ċ"]
    text = "naïve 日本 \t\n 🙂 <|im_end|>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    (prompt,) = encode([QUESTION], tokenizer)
    assert tokenizer.decode(prompt.ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.ids[:3] == [1, 9690, 198]


def test_weights_are_the_tested_ones_and_tied(smollm2):
    assert weights_digest(smollm2 / "model.safetensors") == WEIGHTS_SHA256
    config = json.loads((smollm2 / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert (config["rope_theta"], config["rms_norm_eps"]) == (1e5, 1e-5)


def test_greedy_answer(smollm2):
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    (prompt,) = encode([QUESTION], tokenizer)
    with torch.inference_mode():
        out = model.generate(torch.tensor([prompt.ids]), max_new_tokens=8, do_sample=False)
    assert tokenizer.decode(out[0, len(prompt.ids) :]).startswith("The capital of France is Paris.")


def test_packaged_drafter_is_the_documented_one():
    folder = drafter_path()
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    readme = (folder / "README.md").read_text()
    assert digest in readme
    assert "Apache-2.0" in readme


def test_suites_hold_out_what_the_drafter_was_trained_on():
    gsm8k = suites.load("gsm8k")
    assert (len(gsm8k), gsm8k[0].id) == (319, "gsm8k/1000")
    assert [len(suites.load(name)) for name in ("humaneval", "mt-bench", "math")] == [164, 80, 311]
    everything = [item.id for name in suites.PACKAGED for item in suites.load(name)]
    assert len(set(everything)) == len(everything)
    assert suites.load("humaneval", limit=1, skip=1)[0].id == "HumanEval/1"


def test_suite_errors():
    with pytest.raises(SpecPilotError, match="gsm8k, humaneval"):
        suites.load("nonsense")
    with pytest.raises(SpecPilotError, match="none after 80"):
        suites.load("mt-bench", skip=80)
