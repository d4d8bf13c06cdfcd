"""Single SGLang layers under W12: fused loaders in any order, row-parallel slices, registration and its undo."""

import itertools
import json
from collections.abc import Iterator

import pytest
import torch
from tiny_models import plant_escapes
from w12_data import gaussian

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12 import quant_method
from specpilot_sglang.w12.stats import STATS


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    quant_method.register(max_bits=16.0)
    STATS.layers.clear()
    yield
    quant_method.unregister()


def finish(layer: torch.nn.Module) -> torch.Tensor:
    before, pointer = layer.weight.data.clone(), layer.weight.data_ptr()
    layer.quant_method.process_weights_after_loading(layer)
    assert layer.weight.data_ptr() == pointer
    assert torch.equal(layer.weight.data.view(torch.int16), before.view(torch.int16))
    return layer.weight.data


def planted(n: int, k: int, seed: int) -> torch.Tensor:
    weight = gaussian(n, k, seed)
    plant_escapes(weight)
    return weight


@pytest.mark.parametrize("order", itertools.permutations(["q", "k", "v"]))
def test_b12_qkv_shards_in_any_order(order: tuple[str, ...], parallel) -> None:
    from sglang.srt.layers.linear import QKVParallelLinear

    from specpilot_sglang.w12.method import W12Config

    parts = {"q": planted(64, 96, 0), "k": planted(32, 96, 1), "v": planted(32, 96, 2)}
    for rank, size in ((0, 1), (0, 2), (1, 2)):
        with parallel(rank, size):
            layer = QKVParallelLinear(
                96, 16, 4, 2, bias=False, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix="qkv_proj"
            )
            for shard in order:
                layer.weight.weight_loader(layer.weight, parts[shard], shard)
        expected = torch.cat([parts[s].chunk(size)[rank] for s in "qkv"])
        assert torch.equal(finish(layer), expected)
        record = STATS.layers["qkv_proj"]
        assert record.escapes > 0
        assert 12 < record.bits_per_weight < 13


def test_b12_gated_delta_net_tuple_shards(parallel) -> None:
    from sglang.srt.layers.linear import MergedColumnParallelLinear
    from sglang.srt.models.qwen3_5 import Qwen3_5GatedDeltaNet

    from specpilot_sglang.w12.method import W12Config

    q, k, v, z = (planted(n, 64, i) for i, n in enumerate((32, 32, 64, 64)))
    for rank, size in ((0, 1), (0, 2), (1, 2)):
        for order in itertools.permutations([((0, 1, 2), torch.cat([q, k, v])), (3, z)]):
            with parallel(rank, size):
                layer = MergedColumnParallelLinear(
                    64, [32, 32, 64, 64], bias=False, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix="x"
                )
                original = layer.weight.weight_loader
                load = Qwen3_5GatedDeltaNet._make_packed_weight_loader(layer, original)
                for shard, weight in order:
                    load(layer.weight, weight, shard)
            expected = torch.cat([part.chunk(size)[rank] for part in (q, k, v, z)])
            assert torch.equal(finish(layer), expected)


def test_b12_gate_up_shards_by_number_and_fused(parallel) -> None:
    from sglang.srt.layers.linear import MergedColumnParallelLinear

    from specpilot_sglang.w12.method import W12Config

    gate, up = planted(64, 48, 0), planted(64, 48, 1)
    deliveries = ([(0, gate), (1, up)], [(1, up), (0, gate)], [(None, torch.cat([gate, up]))])
    for (rank, size), delivery in itertools.product(((0, 1), (0, 2), (1, 2)), deliveries):
        with parallel(rank, size):
            layer = MergedColumnParallelLinear(
                48, [64, 64], bias=False, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix="gate_up_proj"
            )
            for shard, weight in delivery:
                layer.weight.weight_loader(layer.weight, weight, shard)
        expected = torch.cat([part.chunk(size)[rank] for part in (gate, up)])
        assert torch.equal(finish(layer), expected)


@pytest.mark.parametrize("k", [96, 66])
def test_b13_row_parallel_slices_keep_their_escapes(k: int, parallel) -> None:
    from sglang.srt.layers.linear import RowParallelLinear

    from specpilot_sglang.w12.method import W12Config

    weight = planted(40, k, 0)
    for rank in range(2):
        with parallel(rank, 2):
            layer = RowParallelLinear(
                k, 40, bias=False, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix="o_proj"
            )
            layer.weight.weight_loader(layer.weight, weight)
        loaded = finish(layer)
        assert torch.equal(loaded.view(torch.int16), weight.chunk(2, dim=1)[rank].contiguous().view(torch.int16))
        # Each half holds two planted columns, at its own edges, in four rows; -0.0 may take the zero code.
        record = STATS.layers["o_proj"]
        assert record.escapes >= (8 if rank == 0 else 4)
        assert record.zeros == (0 if rank == 0 else 4)


def test_layer_computes_what_the_bf16_layer_computes(parallel) -> None:
    from sglang.srt.layers.linear import ReplicatedLinear

    from specpilot_sglang.w12.method import W12Config

    weight, x = planted(32, 64, 0), gaussian(3, 64, 1, 1.0)
    with parallel(0, 1):
        stock = ReplicatedLinear(64, 32, bias=False, params_dtype=torch.bfloat16)
        ours = ReplicatedLinear(64, 32, bias=False, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix="x")
    for layer in (stock, ours):
        layer.weight.weight_loader(layer.weight, weight)
    finish(ours)
    assert torch.equal(ours(x)[0], stock(x)[0])


def test_wrong_decode_stops_the_server(parallel, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers.linear import ReplicatedLinear

    from specpilot_sglang.w12 import codec_torch
    from specpilot_sglang.w12.method import W12Config

    real = codec_torch.decode

    def damaged(tensor: codec_torch.W12Tensor) -> torch.Tensor:
        out = real(tensor)
        out[1, 1] = -out[1, 1]
        return out

    monkeypatch.setattr(codec_torch, "decode", damaged)
    with parallel(0, 1):
        layer = ReplicatedLinear(64, 32, bias=False, params_dtype=torch.bfloat16, quant_config=W12Config(), prefix="x")
    layer.weight.data.copy_(planted(32, 64, 0))
    with pytest.raises(W12Error, match="does not decode"):
        layer.quant_method.process_weights_after_loading(layer)


def test_packed_checkpoint_that_nobody_decoded_is_refused(parallel, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers.linear import ReplicatedLinear

    from specpilot_sglang.w12.method import W12Config

    monkeypatch.setattr(STATS, "decoded", 0)
    with parallel(0, 1):
        config = W12Config.from_config({"quant_method": "w12", "version": 1})
        layer = ReplicatedLinear(64, 32, bias=False, params_dtype=torch.bfloat16, quant_config=config, prefix="x")
    with pytest.raises(W12Error, match="were not decoded") as error:
        layer.quant_method.process_weights_after_loading(layer)
    assert "unpack" in error.value.fix


def test_other_format_version_in_config_is_refused() -> None:
    from specpilot_sglang.w12.method import W12Config

    with pytest.raises(W12Error, match="version 2"):
        W12Config.from_config({"quant_method": "w12", "version": 2})


def test_float32_weights_that_are_not_bf16_are_kept(parallel) -> None:
    from sglang.srt.layers.linear import ReplicatedLinear

    from specpilot_sglang.w12.method import W12Config

    with parallel(0, 1):
        layer = ReplicatedLinear(64, 32, bias=False, params_dtype=torch.float32, quant_config=W12Config(), prefix="x")
    weight = torch.randn(32, 64)
    layer.weight.data.copy_(weight)
    layer.quant_method.process_weights_after_loading(layer)
    assert torch.equal(layer.weight.data, weight)
    assert quant_method.report()["kept"] == {"x": "float32 values that are not BF16"}


def test_register_and_unregister_leave_sglang_as_it_was() -> None:
    from sglang.srt.arg_groups.choices import QUANTIZATION_CHOICES
    from sglang.srt.layers.quantization import QUANTIZATION_METHODS, get_quantization_config
    from sglang.srt.model_loader.loader import DefaultModelLoader

    def state() -> tuple:
        return dict(QUANTIZATION_METHODS), list(QUANTIZATION_CHOICES), DefaultModelLoader._get_weights_iterator

    quant_method.unregister()
    stock = state()
    assert "w12" not in stock[0]
    patches = quant_method.register()
    assert [p.kind for p in patches] == ["around"]
    assert get_quantization_config("w12").get_name() == "w12"
    assert QUANTIZATION_CHOICES.count("w12") == 1
    quant_method.register()  # again: no second wrapper
    assert QUANTIZATION_CHOICES.count("w12") == 1
    quant_method.unregister()
    quant_method.unregister()
    assert state() == stock


def test_report_is_json() -> None:
    assert json.loads(json.dumps(quant_method.report())) == quant_method.report()
