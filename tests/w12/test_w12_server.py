"""Real servers whose weights are W12: the same greedy tokens as BF16, tensor parallel too, and reload."""

import json
from pathlib import Path

import httpx
import pytest
from tiny_models import write_model

from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.presets import ar_args
from specpilot_sglang.eval.servers import Server
from specpilot_sglang.w12.pack import PackOptions, pack_checkpoint

pytestmark = [pytest.mark.server, pytest.mark.slow]

START = 420.0  # seconds; a busy two-core machine imports slowly
CORES = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}  # stock wants one NUMA node a rank unless cores are named
PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time"]
OVERLAY = "name: w12-only\nmatch: {target: LlamaForCausalLM}\nweights: {format: w12}\n"


@pytest.fixture(scope="module")
def packed(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("w12") / "packed"
    pack_checkpoint(smollm2, folder, PackOptions())
    return folder


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("overlay") / "w12-only"
    folder.mkdir()
    (folder / "overlay.yaml").write_text(OVERLAY)
    return ["--speculative-plugin", "specpilot", "--specpilot-overlay", str(folder)]


def tokens(client: Client) -> list[list[int]]:
    sampling = {"temperature": 0, "max_new_tokens": 24}
    return [client.generate(text=prompt, sampling=sampling).output_ids for prompt in PROMPTS]


def w12_report(client: Client) -> list[dict]:
    attested = client.attestation()
    assert attested is not None
    return [rank["mechanisms"]["w12"] for rank in attested["ranks"]]


@pytest.fixture(scope="module")
def expected(smollm2: Path) -> list[list[int]]:
    with Server(ar_args(smollm2, dtype="float32"), name="bf16", start_timeout_s=START) as server:
        return tokens(server.client)


def test_packed_checkpoint_serves_the_same_tokens_and_reloads(
    expected: list[list[int]], packed: Path, smollm2: Path, plugin: list[str]
) -> None:
    with Server([*ar_args(packed, dtype="float32"), *plugin], name="packed", start_timeout_s=START) as server:
        assert tokens(server.client) == expected
        (report,) = w12_report(server.client)
        assert report["tensors_packed"] == 120  # four fused linear layers in each of 30
        assert report["checkpoint_tensors_decoded"] == 211
        assert report["bits_per_weight"] < 12.10
        for path in (packed, smollm2):
            body = {"model_path": str(path), "load_format": "auto"}
            reply = httpx.post(f"{server.url}/update_weights_from_disk", json=body, timeout=300)
            assert json.loads(reply.text)["success"], reply.text
            server.client.flush_cache()
            assert tokens(server.client) == expected


def test_b11_tied_model_generates_on_two_ranks(plugin: list[str], tmp_path: Path) -> None:
    plain, packed = write_model("llama-tied", tmp_path / "plain"), tmp_path / "packed"
    pack_checkpoint(plain, packed, PackOptions(max_bits=13.0))
    found = []
    common = ["--skip-tokenizer-init", "--max-total-tokens", "2048", "--tensor-parallel-size", "2"]
    for model, extra in ((plain, []), (packed, plugin)):
        with Server(
            [*ar_args(model, dtype="float32"), *common, *extra], name="tp2", start_timeout_s=START, env=CORES
        ) as server:
            sampling = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
            found.append([server.client.generate(input_ids=[5, i], sampling=sampling).output_ids for i in range(3, 9)])
            reports = w12_report(server.client) if extra else []
    assert found[0] == found[1]
    assert len(found[0][0]) == 16
    assert len(reports) == 2
    assert all(r["checkpoint_tensors_decoded"] > 0 for r in reports)


def test_packing_at_load_serves_the_same_tokens(expected: list[list[int]], smollm2: Path, plugin: list[str]) -> None:
    with Server(
        [*ar_args(smollm2, dtype="float32"), *plugin, "--quantization", "w12"], name="online", start_timeout_s=START
    ) as server:
        assert tokens(server.client) == expected
        (report,) = w12_report(server.client)
        assert report["tensors_packed"] == 120
        assert report["checkpoint_tensors_decoded"] == 0
