"""One tensor-parallel rank that loads models as SGLang's scheduler does, and prints what it got as JSON lines.

Usage: load_worker.py RANK SIZE PORT CASES, where CASES is a JSON list of {label, path, args, register, update, kernel};
with `kernel`, weights stay packed for the emulated kernel.
"""

from __future__ import annotations

import hashlib
import json
import sys

import torch
from emulated import TorchKernel
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
from sglang.srt.layers.dp_attention import initialize_dp_attention
from sglang.srt.model_loader import get_model, get_model_loader
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs

from specpilot_sglang.w12 import quant_method
from specpilot_sglang.w12.placeholder import PackedParameter
from specpilot_sglang.w12.stats import STATS


def load(case: dict, rank: int, size: int, port: int) -> tuple[torch.nn.Module, ModelConfig]:
    args = {"dtype": "bfloat16", "skip_tokenizer_init": True, "device": "cpu", **case.get("args", {})}
    server_args = ServerArgs(model_path=case["path"], tp_size=size, **args)
    server_args.resolve_once()
    publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=rank))
    model_config = ModelConfig.from_server_args(server_args)
    if not torch.distributed.is_initialized():
        init_distributed_environment(
            backend="gloo",
            world_size=size,
            rank=rank,
            local_rank=0,
            distributed_init_method=f"tcp://127.0.0.1:{port}",
        )
        initialize_model_parallel()
    initialize_dp_attention(server_args)
    load_config = LoadConfig(load_format=args.get("load_format", "auto"))
    model = get_model(model_config=model_config, load_config=load_config, device_config=DeviceConfig("cpu"))
    return model, model_config


def update(model: torch.nn.Module, model_config: ModelConfig, path: str) -> None:
    """What `update_weights_from_disk` does."""
    model_config.model_path = path
    loader = get_model_loader(LoadConfig(), model_config)
    weights = loader._get_weights_iterator(DefaultModelLoader.Source.init_new(model_config, model))
    DefaultModelLoader.restore_weights_before_loading(model, torch.device("cpu"))
    loader.load_weights_and_postprocess(model, weights, torch.device("cpu"))


def digests(model: torch.nn.Module) -> dict[str, str]:
    found = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        tensor = tensor.resident.dense() if isinstance(tensor, PackedParameter) else tensor
        raw = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        found[name] = f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(raw).hexdigest()}"
    return found


def pointers(model: torch.nn.Module) -> dict[str, object]:
    return {
        n: p.resident.packed.pointers() if isinstance(p, PackedParameter) else p.data_ptr()
        for n, p in model.named_parameters()
    }


def run(case: dict, rank: int, size: int, port: int) -> dict:
    STATS.layers.clear()
    STATS.decoded = 0
    quant_method.register(**case.get("register", {}))
    from specpilot_sglang.w12.method import W12Config

    W12Config.backend = TorchKernel() if case.get("kernel") else None
    try:
        model, model_config = load(case, rank, size, port)
        before = pointers(model)
        if "update" in case:
            update(model, model_config, case["update"])
        same = before == pointers(model)
    except Exception as exc:
        return {"label": case["label"], "error": f"{type(exc).__name__}: {exc}"}
    methods = {n: type(m.quant_method).__name__ for n, m in model.named_modules() if hasattr(m, "quant_method")}
    return {
        "label": case["label"],
        "weights": digests(model),
        "methods": methods,
        "pointers_kept": same,
        "report": quant_method.report(),
        "layer_bits": quant_method.layer_bits(),
    }


if __name__ == "__main__":
    rank, size, port = map(int, sys.argv[1:4])
    torch.set_num_threads(1)
    for case in json.loads(sys.argv[4]):
        print("RESULT " + json.dumps(run(case, rank, size, port)), flush=True)
