"""SGLang's own loaders with W12: every parameter of every rank is bit-identical to the BF16 load."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import MODELS, write_model

from specpilot_sglang.w12.pack import PackOptions, pack_checkpoint

WORKER = Path(__file__).with_name("load_worker.py")


def run_ranks(size: int, cases: list[dict]) -> list[dict[str, dict]]:
    """Run the cases on every rank; return each rank's results by label."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(size), str(port), json.dumps(cases)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(size)
    ]
    ranks = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=400)
            lines = [json.loads(line[7:]) for line in out.splitlines() if line.startswith("RESULT ")]
            assert len(lines) == len(cases), err[-3000:]
            ranks.append({line["label"]: line for line in lines})
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return ranks


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    root = tmp_path_factory.mktemp("models")
    made = {}
    for name in MODELS:
        plain, packed = write_model(name, root / name), root / f"{name}-w12"
        reports = pack_checkpoint(plain, packed, PackOptions(max_bits=13.0))
        assert sum(r.escapes for r in reports) > 100
        made[name] = (plain, packed)
    return made


@pytest.fixture(scope="module", params=[1, 2])
def loaded(request: pytest.FixtureRequest, models: dict[str, tuple[Path, Path]]) -> list[dict[str, dict]]:
    cases = []
    settings, online = {"max_bits": 13.0}, {"quantization": "w12"}

    for name, (plain, packed) in models.items():
        cases += [
            {"label": f"{name} bf16", "path": str(plain)},
            {"label": f"{name} packed", "path": str(packed), "register": settings},
            {"label": f"{name} online", "path": str(plain), "args": online, "register": settings},
            {"label": f"{name} kernel", "path": str(packed), "register": settings, "kernel": True},
            {
                "label": f"{name} kernel online",
                "path": str(plain),
                "args": online,
                "register": settings,
                "kernel": True,
            },
            {"label": f"{name} fp32", "path": str(plain), "args": {"dtype": "float32"}},
            {"label": f"{name} packed fp32", "path": str(packed), "args": {"dtype": "float32"}, "register": settings},
        ]
    llama, packed = (str(path) for path in models["llama-tied"])
    other, other_packed = (str(path) for path in models["qwen2-untied"])
    cases += [
        {"label": "update", "path": packed, "update": packed, "register": settings},
        {"label": "update online", "path": other, "args": online, "update": other_packed},
        {"label": "update kernel", "path": other_packed, "update": other, "register": settings, "kernel": True},
        {
            "label": "excluded",
            "path": llama,
            "args": online,
            "register": {"exclude": ["q_proj", "down"]},
        },
        {"label": "tight", "path": llama, "args": online, "register": {"max_bits": 12.0}},
        {"label": "fp16", "path": packed, "args": {"dtype": "float16"}},
        {
            "label": "lora",
            "path": packed,
            "args": {"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": ["q_proj"]},
        },
        {"label": "pt", "path": packed, "args": {"load_format": "pt"}},
        {"label": "dummy", "path": packed, "args": {"load_format": "dummy"}},
    ]
    return run_ranks(request.param, cases)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["packed", "online"])
def test_b11_b12_b13_every_parameter_is_bit_identical(loaded: list[dict[str, dict]], name: str, kind: str) -> None:
    for rank in loaded:
        expected, found = rank[f"{name} bf16"], rank[f"{name} {kind}"]
        assert "error" not in found, found
        assert found["weights"] == expected["weights"]
        assert "W12LinearMethod" in found["methods"].values()
        assert "W12LinearMethod" not in expected["methods"].values()
        assert found["report"]["tensors_packed"] >= 8
        assert (found["report"]["checkpoint_tensors_decoded"] > 0) == (kind == "packed")
        assert 12 < found["report"]["bits_per_weight"] < 13


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["kernel", "kernel online"])
def test_b11_b12_b13_packed_parameters_hold_every_bit(loaded: list[dict[str, dict]], name: str, kind: str) -> None:
    for rank in loaded:
        expected, found = rank[f"{name} bf16"], rank[f"{name} {kind}"]
        assert "error" not in found, found
        assert found["weights"] == expected["weights"]
        linear = [n for n, method in found["methods"].items() if method == "W12KernelMethod"]
        tied = name == "llama-tied"
        assert ("lm_head" in linear) != tied
        assert ("W12TiedMethod" in found["methods"].values()) == tied
        report = found["report"]
        assert report["kernel_layers"] == report["tensors_packed"] == len(linear) + tied
        assert {n.rpartition(".")[2] for n in report["kept"]} <= {
            "in_proj_ba"
        }  # 8 rows: its header costs a bit a weight


@pytest.mark.parametrize("name", MODELS)
def test_float32_serving_widens_the_same_bits(loaded: list[dict[str, dict]], name: str) -> None:
    for rank in loaded:
        found = rank[f"{name} packed fp32"]
        assert "error" not in found, found
        assert found["weights"] == rank[f"{name} fp32"]["weights"]
        assert found["report"]["tensors_packed"] >= 8


def test_b12_fused_layers_went_through_w12(loaded: list[dict[str, dict]]) -> None:
    for rank in loaded:
        methods = rank["qwen3_5-hybrid packed"]["methods"]
        fused = {n.rpartition(".")[2] for n, m in methods.items() if m == "W12LinearMethod"}
        assert {"in_proj_qkvz", "in_proj_ba", "qkv_proj", "gate_up_proj", "out_proj", "o_proj", "down_proj"} <= fused


def test_b11_embedding_and_tied_head_keep_their_method(loaded: list[dict[str, dict]]) -> None:
    for rank in loaded:
        methods = rank["llama-tied packed"]["methods"]
        assert methods["model.embed_tokens"] == "UnquantizedEmbeddingMethod"
        assert methods.get("lm_head", "UnquantizedEmbeddingMethod") == "UnquantizedEmbeddingMethod"


def test_b10_reload_keeps_storage_and_gives_the_new_weights(loaded: list[dict[str, dict]]) -> None:
    for rank in loaded:
        updates = (("update", "llama-tied"), ("update online", "qwen2-untied"), ("update kernel", "qwen2-untied"))
        for label, name in updates:
            assert "error" not in rank[label], rank[label]
            assert rank[label]["pointers_kept"]
            assert rank[label]["weights"] == rank[f"{name} bf16"]["weights"]
            assert rank[label]["report"]["checkpoint_tensors_decoded"] > 0


def test_kept_layers_are_reported_with_the_reason(loaded: list[dict[str, dict]]) -> None:
    for rank in loaded:
        kept = rank["excluded"]["report"]["kept"]
        assert {n.rpartition(".")[2] for n, why in kept.items() if why == "excluded"} == {"qkv_proj", "down_proj"}
        tight = rank["tight"]["report"]
        assert tight["tensors_packed"] == 0
        assert all(why.startswith("needs 12.") or why.startswith("needs 13.") for why in tight["kept"].values())
        assert rank["tight"]["weights"] == rank["llama-tied bf16"]["weights"]


def test_what_w12_cannot_serve_is_refused(loaded: list[dict[str, dict]]) -> None:
    for rank in loaded:
        assert "float16 is not supported for quantization" in rank["fp16"]["error"]
        assert "cannot take LoRA adapters" in rank["lora"]["error"]
        assert "cannot be loaded with --load-format pt" in rank["pt"]["error"]
        assert "error" not in rank["dummy"], rank["dummy"]
