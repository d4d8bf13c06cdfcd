"""Layers whose weight stays packed, with an emulated kernel: loading, dispatch, updates, refusals, the operator."""

from __future__ import annotations

import itertools

import pytest
import torch
from emulated import TorchKernel
from packed_layers import K, N, finish, loaded, planted, replicated, same_bits
from w12_data import gaussian

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12 import quant_method
from specpilot_sglang.w12.placeholder import PackedParameter


def test_whole_path_gives_the_kernels_answer_and_holds_no_bf16_weight(kernel: TorchKernel, parallel) -> None:
    with parallel(0, 1):
        layer = loaded(gaussian(N, K, 0))
    assert isinstance(layer.weight, PackedParameter)
    assert layer.weight.is_meta
    assert kernel.calls == ["pack", "prepare"]
    x = gaussian(5, K, 1, 1.0)
    y = layer(x)[0]
    assert torch.equal(y, kernel.linear(x, layer.weight.resident.packed))
    assert torch.allclose(y.float(), x.float() @ gaussian(N, K, 0).float().T, rtol=0.02, atol=0.02)
    report = quant_method.report()
    assert report["kernel_layers"] == 1
    assert report["kernel"] == {"name": "emulated", "calls": 4}
    assert 1.5 * N * K < report["resident_bytes"] < 2 * N * K
    assert report["late_patches"]
    assert not any(t.numel() == N * K and not t.is_meta for t in [*layer.parameters(), *layer.buffers()])


def test_weight_is_encoded_when_its_last_shard_arrives_not_at_the_end(kernel: TorchKernel, parallel) -> None:
    from sglang.srt.layers.linear import MergedColumnParallelLinear

    from specpilot_sglang.w12.method import W12Config

    with parallel(0, 1):
        layer = MergedColumnParallelLinear(
            K, [N, N], bias=False, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix="gate_up_proj"
        )
    gate, up = gaussian(N, K, 0), gaussian(N, K, 1)
    layer.weight.weight_loader(layer.weight, gate, 0)
    layer.weight.weight_loader(layer.weight, gate, 0)  # twice the same shard is not the whole
    assert kernel.calls == []
    layer.weight.weight_loader(layer.weight, up, 1)
    assert kernel.calls == ["pack"]
    assert layer.weight.resident._filling is None
    assert same_bits(layer.weight.resident.dense(), torch.cat([gate, up]))


@pytest.mark.parametrize("order", itertools.permutations(["q", "k", "v"]))
def test_b12_qkv_slices_of_every_rank(order: tuple[str, ...], kernel: TorchKernel, parallel) -> None:
    from sglang.srt.layers.linear import QKVParallelLinear

    from specpilot_sglang.w12.method import W12Config

    parts = {"q": planted(64, K, 0), "k": planted(32, K, 1), "v": planted(32, K, 2)}
    for rank, size in ((0, 1), (0, 2), (1, 2)):
        with parallel(rank, size):
            layer = QKVParallelLinear(
                K, 16, 4, 2, bias=False, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix="qkv_proj"
            )
            for shard in order:
                layer.weight.weight_loader(layer.weight, parts[shard], shard)
        expected = torch.cat([parts[s].chunk(size)[rank] for s in "qkv"])
        assert same_bits(finish(layer).weight.resident.dense(), expected)


def test_b12_gated_delta_net_projections(kernel: TorchKernel, parallel) -> None:
    from sglang.srt.layers.linear import MergedColumnParallelLinear
    from sglang.srt.models.qwen3_5 import Qwen3_5GatedDeltaNet

    from specpilot_sglang.w12.method import W12Config

    q, k, v, z = (planted(n, 64, i) for i, n in enumerate((32, 32, 64, 64)))
    for rank, size in ((0, 1), (1, 2)):
        with parallel(rank, size):
            layer = MergedColumnParallelLinear(
                64, [32, 32, 64, 64], bias=False, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix="x"
            )
            load = Qwen3_5GatedDeltaNet._make_packed_weight_loader(layer, layer.weight.weight_loader)
            Qwen3_5GatedDeltaNet._override_weight_loader(layer.weight, load)
            for shard, weight in (((0, 1, 2), torch.cat([q, k, v])), (3, z)):
                layer.weight.weight_loader(layer.weight, weight, shard)
        expected = torch.cat([part.chunk(size)[rank] for part in (q, k, v, z)])
        assert same_bits(finish(layer).weight.resident.dense(), expected)


def test_b13_row_parallel_columns_of_every_rank(kernel: TorchKernel, parallel) -> None:
    from sglang.srt.layers.linear import RowParallelLinear

    from specpilot_sglang.w12.method import W12Config

    weight = planted(40, K, 0)
    for rank in range(2):
        with parallel(rank, 2):
            layer = RowParallelLinear(
                K, 40, bias=False, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix="o_proj"
            )
            layer.weight.weight_loader(layer.weight, weight)
        assert same_bits(finish(layer).weight.resident.dense(), weight.chunk(2, dim=1)[rank])


def test_lm_head_with_padded_vocabulary(kernel: TorchKernel, parallel) -> None:
    from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method
    from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead

    from specpilot_sglang.w12.method import W12Config

    weight = gaussian(100, K, 0)  # padded to 128 rows
    for rank, size in ((0, 1), (1, 2)):
        with parallel(rank, size):
            head = ParallelLMHead(100, K, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix="lm_head")
            head.weight.weight_loader(head.weight, weight)
        dense = finish(head).weight.resident.dense()
        expected = torch.nn.functional.pad(weight, (0, 0, 0, 28)).chunk(size)[rank]
        assert same_bits(dense, expected)
        assert should_apply_lm_head_quant_method(head, head.quant_method)
        assert head.quant_method.apply(head, gaussian(2, K, 1), None).shape == (2, 128 // size)


def test_head_that_shares_the_embedding_stays_bf16(kernel: TorchKernel, parallel) -> None:
    from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    from specpilot_sglang.w12.method import W12Config

    with parallel(0, 1):
        embedding = VocabParallelEmbedding(128, K, params_dtype=torch.bfloat16, quant_config=W12Config())
        head = ParallelLMHead(128, K, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix="lm_head")
    head.tie_weights(embedding)
    finish(head)
    assert type(head.quant_method).__name__ == "UnquantizedEmbeddingMethod"
    assert "shares the embedding" in quant_method.report()["kept"]["lm_head"]


@pytest.mark.parametrize("stays", ["", "excluded", "BF16 is faster"])
def test_b11_tied_head_reads_a_packed_copy_and_lookup_the_bf16_rows(
    stays: str, kernel: TorchKernel, parallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

    from specpilot_sglang.w12 import tied_head
    from specpilot_sglang.w12.method import W12Config

    monkeypatch.setattr(tied_head, "embeddings_are_tied", lambda: True)
    if stays == "excluded":
        monkeypatch.setattr(W12Config, "exclude", ("embed_tokens",))
    elif stays:
        kernel.refused[(128, K)] = stays
    with parallel(0, 1):
        layer = VocabParallelEmbedding(
            128, K, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix="model.embed_tokens"
        )
    weight, x = gaussian(128, K, 0), gaussian(2, K, 1, 1.0)
    for update in (weight, gaussian(128, K, 3)):
        layer.weight.weight_loader(layer.weight, update)
        finish_if_ours(layer)
        assert torch.equal(layer.quant_method.embedding(layer, torch.tensor([3, 9])), update[[3, 9]])
        method = layer.quant_method
        assert should_apply_lm_head_quant_method(layer, method) == (not stays)
        expected = torch.nn.functional.linear(x, update) if stays else kernel.linear(x, method._copy.packed)
        assert torch.equal(method.apply(layer, x, None), expected)
    if stays:
        assert quant_method.report()["kept"] == {"model.embed_tokens (tied head)": stays}
    else:
        assert kernel.calls.count("pack") == 1
        assert kernel.calls.count("refresh") == 1
        assert same_bits(layer.quant_method._copy.dense(), gaussian(128, K, 3))


def finish_if_ours(layer: torch.nn.Module) -> None:
    if hasattr(layer.quant_method, "process_weights_after_loading"):
        layer.quant_method.process_weights_after_loading(layer)


@pytest.mark.parametrize(
    ("settings", "stays"),
    [
        ({}, ""),
        ({"speculative_algorithm": "EAGLE3"}, "EAGLE3 drafter"),
        ({"speculative_algorithm": "DFLASH", "speculative_draft_model_path": "selector"}, ""),
        ({"speculative_algorithm": "DFLASH", "speculative_draft_model_path": "plain"}, "DFLASH drafter"),
        ({"speculative_algorithm": "DFLASH", "speculative_draft_model_path": "missing"}, "DFLASH drafter"),
        ({"enable_fp32_lm_head": True}, "fp32-lm-head"),
    ],
)
def test_head_is_packed_only_where_nothing_multiplies_by_its_matrix(
    settings: dict, stays: str, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    from specpilot_sglang.w12 import guards

    for name, config in (("selector", '{"dflash_config": {"selector_rank": 8}}'), ("plain", '{"dflash_config": {}}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
    if path := settings.get("speculative_draft_model_path"):
        settings = {**settings, "speculative_draft_model_path": str(tmp_path / path)}
    monkeypatch.setattr(guards, "server_setting", settings.get)
    assert stays in guards.head_reader()
    assert bool(stays) == bool(guards.head_reader())


def test_layer_that_the_table_refuses_is_sglangs_own_bf16_layer(kernel: TorchKernel, parallel) -> None:
    kernel.refused[(N, K)] = "BF16 is faster"
    with parallel(0, 1):
        layer = loaded(gaussian(N, K, 0))
    assert type(layer.quant_method).__name__ == "UnquantizedLinearMethod"
    assert same_bits(layer.weight.data, gaussian(N, K, 0))
    report = quant_method.report()
    assert report["kept"] == {"proj": "BF16 is faster"}
    assert report["kept_weights"] == N * K
    assert report["kernel_layers"] == 0


def test_weight_over_max_bits_becomes_bf16_after_loading(
    kernel: TorchKernel, parallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specpilot_sglang.w12.method import W12Config

    monkeypatch.setattr(W12Config, "max_bits", 12.5)
    weight = (gaussian(N, K, 0, 1.0).double() * 2.0 ** torch.randint(-60, 60, (N, K))).bfloat16()
    with parallel(0, 1):
        layer = loaded(weight)
    assert type(layer.quant_method).__name__ == "UnquantizedLinearMethod"
    assert same_bits(layer.weight.data, weight)
    assert "bits per weight" in quant_method.report()["kept"]["proj"]
    again = gaussian(N, K, 1)
    layer.weight.weight_loader(layer.weight, again)  # an update fills the BF16 weight as stock does
    assert same_bits(layer.weight.data, again)


def test_excluded_and_float32_layers_keep_their_reason(
    kernel: TorchKernel, parallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specpilot_sglang.w12.method import W12Config

    monkeypatch.setattr(W12Config, "exclude", ("down",))
    with parallel(0, 1):
        loaded(gaussian(N, K, 0), prefix="down_proj")
        loaded(gaussian(N, K, 0).float(), prefix="up_proj", dtype=torch.float32)
    assert quant_method.report()["kept"] == {"down_proj": "excluded", "up_proj": "torch.float32, not BF16"}


def test_bias_is_added(kernel: TorchKernel, parallel) -> None:
    with parallel(0, 1):
        layer = replicated(bias=True)
        layer.weight.weight_loader(layer.weight, gaussian(N, K, 0))
    layer.bias.data.fill_(2.0)
    x = gaussian(3, K, 1, 1.0)
    assert torch.equal(finish(layer)(x)[0], kernel.linear(x, layer.weight.resident.packed) + 2.0)


def test_b10_update_keeps_addresses_and_partial_update_keeps_the_rest(kernel: TorchKernel, parallel) -> None:
    from sglang.srt.layers.linear import MergedColumnParallelLinear

    from specpilot_sglang.w12.method import W12Config

    with parallel(0, 1):
        layer = MergedColumnParallelLinear(
            K, [N, N], bias=False, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix="gate_up_proj"
        )
    gate, up, new = gaussian(N, K, 0), planted(N, K, 1), planted(N, K, 2)
    for index, part in enumerate((gate, up)):
        layer.weight.weight_loader(layer.weight, part, index)
    resident = finish(layer).weight.resident
    pointers, parameter = resident.packed.pointers(), layer.weight
    layer.weight.weight_loader(layer.weight, new, 0)
    assert same_bits(resident.dense(), torch.cat([gate, up]))  # served until the update ends
    finish(layer)
    assert same_bits(resident.dense(), torch.cat([new, up]))
    assert resident.packed.pointers() == pointers
    assert layer.weight is parameter
    assert kernel.calls == ["pack", "prepare", "refresh", "prepare"]


def test_b10_direct_update_by_parameter_name(kernel: TorchKernel, parallel) -> None:
    from sglang.srt.model_executor.model_runner_components import weight_updater

    with parallel(0, 1):
        model = torch.nn.ModuleDict({"proj": loaded(gaussian(N, K, 0)), "norm": torch.nn.LayerNorm(4)})
    resident = model["proj"].weight.resident
    pointers, new = resident.packed.pointers(), gaussian(N, K, 5)
    weight_updater._model_load_weights_direct(model, [("proj.weight", new), ("norm.bias", torch.ones(4))])
    assert same_bits(resident.dense(), new)
    assert resident.packed.pointers() == pointers
    assert torch.equal(model["norm"].bias, torch.ones(4))
    with pytest.raises(ValueError, match="shape"):
        weight_updater._model_load_weights_direct(model, [("proj.weight", new[:2])])


@pytest.mark.parametrize("zeros_first", [True, False])
def test_b10_update_keeps_the_decoder_that_graphs_captured(zeros_first: bool, kernel: TorchKernel, parallel) -> None:
    sparse = gaussian(N, K, 0)
    sparse[:, ::5] = 0.0
    first, second = (sparse, gaussian(N, K, 1)) if zeros_first else (gaussian(N, K, 1), sparse.clone())
    second[:, 7:] = second[:, 7:] if zeros_first else gaussian(N, K, 1)[:, 7:]
    with parallel(0, 1):
        layer = loaded(first)
    resident = layer.weight.resident
    assert resident.packed.tensor.zero_code == zeros_first
    if zeros_first:
        layer.weight.weight_loader(layer.weight, second)
        assert same_bits(resident.dense(), second)
    else:
        with pytest.raises(W12Error, match="does not fit into the old one") as error:
            layer.weight.weight_loader(layer.weight, sparse)
        assert "start the server again" in error.value.fix


def test_dummy_weights_are_packed_layer_by_layer(
    kernel: TorchKernel, parallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specpilot_sglang.w12 import kernel_method

    monkeypatch.setattr(kernel_method, "server_setting", {"load_format": "dummy"}.get)
    with parallel(0, 1):
        layer = replicated()
    layer.weight.data.copy_(gaussian(N, K, 0))  # what the dummy loader does
    finish(layer)
    assert same_bits(layer.weight.resident.dense(), gaussian(N, K, 0))
    layer.weight.weight_loader(layer.weight, gaussian(N, K, 1))
    assert same_bits(layer.weight.resident.dense(), gaussian(N, K, 1))


@pytest.mark.parametrize(
    "read",
    [
        lambda w: torch.nn.functional.linear(torch.zeros(1, K, dtype=torch.bfloat16), w),
        lambda w: w.data,
        lambda w: w.data_ptr(),
        lambda w: w.T,
        lambda w: w[:2],
        lambda w: w.copy_(torch.zeros(N, K)),
        lambda w: w.to(torch.float32),
        lambda w: w.untyped_storage(),
        lambda w: w.cpu(),
        lambda w: w.view(-1),
        lambda w: torch.equal(w, w),
    ],
)
def test_nothing_can_read_or_write_a_packed_weight_as_a_matrix(read, kernel: TorchKernel, parallel) -> None:
    with parallel(0, 1):
        layer = loaded(gaussian(N, K, 0))
    with pytest.raises(W12Error, match="packed and cannot be read") as error:
        read(layer.weight)
    assert error.value.where == "proj"


def test_packed_weight_answers_what_concerns_its_form(kernel: TorchKernel, parallel) -> None:
    with parallel(0, 1):
        layer = loaded(gaussian(N, K, 0))
    weight = layer.weight
    assert (tuple(weight.shape), weight.dtype, weight.device.type) == ((N, K), torch.bfloat16, "cpu")
    assert (weight.size(0), weight.numel(), weight.ndim, weight.requires_grad) == (N, N * K, 2, False)
    assert layer.state_dict()["weight"] is weight
    assert layer._weight_export_error


def test_model_loader_moves_packed_layers_through_its_staging(kernel: TorchKernel, parallel) -> None:
    from sglang.srt.model_loader.post_load import stage_module_for_post_load

    with parallel(0, 1):
        layer = replicated()
        layer.weight.weight_loader(layer.weight, gaussian(N, K, 0))
    with stage_module_for_post_load(layer, torch.device("cpu")):
        finish(layer)
    assert same_bits(layer.weight.resident.dense(), gaussian(N, K, 0))


def test_weight_that_the_kernel_declines_becomes_bf16_after_loading(kernel: TorchKernel, parallel) -> None:
    kernel.declined = "too many escapes"
    weight = planted(N, K, 0)
    with parallel(0, 1):
        layer = loaded(weight)
    assert type(layer.quant_method).__name__ == "UnquantizedLinearMethod"
    assert same_bits(layer.weight.data, weight)
    assert quant_method.report()["kept"] == {"proj": "too many escapes"}
    assert "pack" not in kernel.calls


def test_shard_that_is_no_multiple_of_the_kernels_columns_stays_bf16_and_says_so(
    kernel: TorchKernel, parallel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sglang.srt.layers.linear import RowParallelLinear

    from specpilot_sglang.kernels.w12_gemm import linear
    from specpilot_sglang.w12.method import W12Config

    cuda = torch.device("cuda", 0)  # the form is asked before the GPU is
    monkeypatch.setattr(TorchKernel, "refuses", lambda self, n, k, device: linear.unsupported(n, k, cuda))
    monkeypatch.setattr(linear, "architecture", lambda capability: "sm_90a")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    weight = planted(40, 384, 0)
    for size, stays in ((2, ""), (4, "K is 96, not a multiple of 64")):
        with parallel(size - 1, size), caplog.at_level("INFO"):
            layer = RowParallelLinear(
                384, 40, bias=False, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix=f"down{size}"
            )
            layer.weight.weight_loader(layer.weight, weight)
            finish_if_ours(layer)
        shard = weight.chunk(size, dim=1)[-1]
        if stays:
            assert same_bits(layer.weight.data, shard)
            assert f"down{size} stays BF16: {stays}" in caplog.text
        else:
            assert same_bits(layer.weight.resident.dense(), shard)
