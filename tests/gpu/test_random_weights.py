"""Random checkpoints hold what the architecture wants, with the values that were promised."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from specpilot_sglang.eval.gpu import weights
from specpilot_sglang.eval.gpu.shapes import QWEN3_8_27B, SHAPES


def test_names_and_shapes_are_those_of_transformers() -> None:
    from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = {k: v for k, v in SHAPES["tiny-hybrid"].items() if k not in ("architectures", "model_type", "dtype")}
    with torch.device("meta"):
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**config))
    expected = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    assert {t.name: t.shape for t in weights.tensors(SHAPES["tiny-hybrid"])} == expected


def test_written_checkpoint_reads_back(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(weights, "SHARD_BYTES", 100_000)
    folder = weights.write_weights("tiny-hybrid", tmp_path / "model")
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 2
    found = {name: t for file in files for name, t in load_file(file).items()}
    assert {n: tuple(t.shape) for n, t in found.items()} == {
        t.name: t.shape for t in weights.tensors(SHAPES["tiny-hybrid"])
    }
    gate = found["model.layers.0.mlp.gate_proj.weight"].float()
    assert abs(gate.std().item() - 0.02) < 0.001
    assert abs(gate.mean().item()) < 0.001
    assert torch.equal(found["model.layers.0.linear_attn.norm.weight"], torch.ones(16, dtype=torch.bfloat16))
    assert not torch.equal(gate, found["model.layers.1.mlp.gate_proj.weight"].float())


def test_the_27b_shape_has_its_linear_layers() -> None:
    total = sum(t.size for t in weights.tensors(QWEN3_8_27B)) / 2
    assert 26.8e9 < total < 27.0e9
