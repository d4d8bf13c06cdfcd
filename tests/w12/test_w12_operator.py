"""The operator on packed weights, and what packed weights refuse, with an emulated kernel."""

from __future__ import annotations

import pytest
import torch
from emulated import TorchKernel
from packed_layers import K, N, finish, loaded
from w12_data import gaussian

from specpilot_sglang.errors import W12Error
from specpilot_sglang.plugin import counters
from specpilot_sglang.w12 import ops
from specpilot_sglang.w12.stats import STATS


def test_operator_is_sound_and_compiles(kernel: TorchKernel, parallel) -> None:
    with parallel(0, 1):
        layer = loaded(gaussian(N, K, 0))
    x = gaussian(4, K, 1, 1.0)
    torch.library.opcheck(torch.ops.specpilot.w12_linear, (x, layer.weight.handle, N))
    compiled = torch.compile(lambda x: layer(x)[0] * 2, backend="eager", fullgraph=True, dynamic=False)
    assert torch.equal(compiled(x), layer(x)[0] * 2)


def test_operator_counts_its_calls_and_copies_rows_it_cannot_address(kernel: TorchKernel, parallel) -> None:
    with parallel(0, 1):
        layer = loaded(gaussian(N, K, 0))
    before = counters.snapshot().get(ops.CALLS, 0)
    wide = gaussian(4, K + 1, 1, 1.0)
    assert torch.equal(layer(wide[:, 1:])[0], layer(wide[:, 1:].contiguous())[0])
    assert layer(gaussian(6, K, 1).view(2, 3, K))[0].shape == (2, 3, N)
    assert layer(wide[:0, 1:])[0].shape == (0, N)
    assert counters.snapshot()[ops.CALLS] == before + 4


def test_packed_checkpoint_that_nobody_decoded_is_refused(
    kernel: TorchKernel, parallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.layers.linear import ReplicatedLinear

    from specpilot_sglang.w12.method import W12Config

    monkeypatch.setattr(STATS, "decoded", 0)
    with parallel(0, 1):
        config = W12Config.from_config({"quant_method": "w12", "version": 1})
        layer = ReplicatedLinear(64, 32, bias=False, params_dtype=torch.bfloat16, quant_config=config, prefix="x")
    with pytest.raises(W12Error, match="were not decoded"):
        finish(layer)


def test_wrong_decode_of_the_kernel_stops_the_server(
    kernel: TorchKernel, parallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = kernel.decode

    def damaged(packed) -> torch.Tensor:
        out = real(packed)
        out[1, 1] = -out[1, 1]
        return out

    monkeypatch.setattr(kernel, "decode", damaged)
    with parallel(0, 1), pytest.raises(W12Error, match="does not decode"):
        loaded(gaussian(N, K, 0))


@pytest.mark.parametrize(
    ("setting", "value", "flag"),
    [
        ("enable_lora", True, "LoRA"),
        ("lora_paths", ["a"], "LoRA"),
        ("cpu_offload_gb", 4, "--cpu-offload-gb"),
        ("offload_group_size", 1, "--offload-group-size"),
        ("enable_memory_saver", True, "--enable-memory-saver"),
        ("weight_cache_mode", "client", "--weight-cache-mode"),
        ("load_format", "layered", "--load-format layered"),
        ("load_format", "sharded_state", "--load-format sharded_state"),
        ("load_format", "flash_rl", "--load-format flash_rl"),
    ],
)
def test_what_packed_weights_cannot_serve_is_refused_at_start(
    setting: str, value: object, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specpilot_sglang.w12 import guards

    monkeypatch.setattr(guards, "server_setting", {setting: value}.get)
    with pytest.raises(W12Error) as error:
        guards.refuse_unsupported(packed=False, kernel=True)
    assert flag in error.value.line()
    assert error.value.fix
