"""SGLang's quantization method for layers whose weight stays packed and is read by a kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.quantization.base_config import LinearMethodBase
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod
from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12 import late_patches, ops
from specpilot_sglang.w12.guards import head_reader, server_setting
from specpilot_sglang.w12.kernel import KernelBackend
from specpilot_sglang.w12.placeholder import PackedParameter
from specpilot_sglang.w12.resident import ResidentWeight
from specpilot_sglang.w12.stats import STATS, LayerRecord

if TYPE_CHECKING:
    from specpilot_sglang.w12.method import W12Config

logger = logging.getLogger(__name__)
_NO_EXPORT = "W12 weights are packed in memory; export the checkpoint they were loaded from instead"


class W12KernelMethod(LinearMethodBase):
    """Linear layer or LM head of one rank; a layer that is better off with BF16 gets SGLang's own method instead."""

    def __init__(self, config: W12Config, prefix: str, backend: KernelBackend) -> None:
        self.config, self.prefix, self.backend = config, prefix, backend
        self._pending: ResidentWeight | None = None

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Give the layer a stand-in for its weight, or BF16 with the reason on record."""
        layer.w12_handle = 0
        n, k, device = sum(output_partition_sizes), input_size_per_partition, torch.empty(0).device
        sizes = (input_size_per_partition, output_partition_sizes, input_size, output_size, params_dtype)
        why = self._reason(layer, n, k, params_dtype, device)
        resident = ResidentWeight(n, k, device, self.prefix, self.backend, self.config.max_bits)
        if why or server_setting("load_format") == "dummy":
            _plain_method(layer).create_weights(layer, *sizes, **extra_weight_attrs)
            self._pending = None if why else resident
            if why:
                self._stay_bf16(layer, LayerRecord(n * k, n * k * params_dtype.itemsize, 0, 0, False, why))
            return
        late_patches.install(graphs=device.type == "cuda")
        attributes = {"input_dim": 1, "output_dim": 0, **extra_weight_attrs}
        layer.register_parameter("weight", _stand_in(resident, attributes))

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Encode what was loaded, prepare the kernel, record the result; also after every update of weights.

        Raises:
            W12Error: new weights that cannot take the old ones' place, or a decode that is not bit-identical.
        """
        weight = layer.weight
        if not isinstance(weight, PackedParameter):
            if self._pending is None:
                self._stay_bf16(layer, _kept(weight, "shares the embedding's BF16 weight"))
                return
            weight = self._adopt(layer, self._pending)
        resident = weight.resident
        resident.seal()
        if resident.plain is not None:
            layer.weight = _with_attributes(torch.nn.Parameter(resident.plain, requires_grad=False), weight)
            layer.weight.weight_loader = weight.__dict__["stock_loader"]
            self._stay_bf16(layer, resident.record or _kept(layer.weight, "does not pack"))
        elif resident.packed is None:
            self._refuse_undecoded()
            STATS.layers[self.prefix] = LayerRecord(resident.n * resident.k, 0, 0, 0, False, "nothing was loaded")
        else:
            self.backend.prepare(resident.packed)
            # On the layer, because torch.compile reads integers of a module and trips over parameter subclasses.
            layer.w12_handle, layer.w12_rows = resident.handle, resident.n
            layer._weight_export_error = _NO_EXPORT
            assert resident.record is not None
            STATS.layers[self.prefix], STATS.backend = resident.record, self.backend
            if resident.device.type == "cuda":
                STATS.device_bytes = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return `x @ weight.T + bias`; with a bias the product is rounded to BF16 before it is added."""
        if layer.w12_handle:
            y = ops.w12_linear(x, layer.w12_handle, layer.w12_rows)
        elif isinstance(layer.weight, PackedParameter):  # a drafter's head that was handed the target's
            y = ops.w12_linear(x, layer.weight.handle, layer.weight.rows)
        else:
            return torch.nn.functional.linear(x, layer.weight, bias)
        return y if bias is None else y.add_(bias)

    def _reason(self, layer: torch.nn.Module, n: int, k: int, dtype: torch.dtype, device: torch.device) -> str:
        if self.config.excluded(self.prefix):
            return "excluded"
        if dtype != torch.bfloat16:
            return f"{dtype}, not BF16"
        if isinstance(layer, VocabParallelEmbedding) and (reader := head_reader()):
            return reader
        return self.backend.refuses(n, k, device)

    def _refuse_undecoded(self) -> None:
        if self.config.packed and STATS.decoded == 0:
            raise W12Error(
                "the packed checkpoint's tensors were not decoded while loading",
                where=self.prefix,
                fix="load with --load-format auto, or unpack the checkpoint with `specpilot w12 unpack`",
            )

    def _adopt(self, layer: torch.nn.Module, resident: ResidentWeight) -> PackedParameter:
        """Pack a plain weight that was filled by something else than loaders, and free it."""
        plain, self._pending = layer.weight, None
        stand_in = _stand_in(resident, dict(plain.__dict__))
        with resident.filling() as buffer:
            buffer.copy_(plain.data)
        layer.weight = stand_in
        return stand_in

    def _stay_bf16(self, layer: torch.nn.Module, record: LayerRecord) -> None:
        STATS.layers[self.prefix] = record
        layer.quant_method = _plain_method(layer)
        logger.info("specpilot: w12: %s stays BF16: %s", self.prefix, record.reason)


def _plain_method(layer: torch.nn.Module) -> Any:
    return UnquantizedEmbeddingMethod() if isinstance(layer, VocabParallelEmbedding) else UnquantizedLinearMethod()


def _kept(weight: torch.Tensor, reason: str) -> LayerRecord:
    return LayerRecord(weight.numel(), weight.numel() * weight.element_size(), 0, 0, False, reason)


def _stand_in(resident: ResidentWeight, attributes: dict[str, Any]) -> PackedParameter:
    """Return the parameter that loaders see, with their attributes, its `weight_loader` filling `resident`."""
    stand_in = PackedParameter(resident)
    stock_loader = attributes.get("weight_loader")
    stand_in.__dict__.update(attributes, stock_loader=stock_loader)
    if stock_loader is not None:
        stand_in.weight_loader = _filling_loader(stand_in, stock_loader)
    return stand_in


def _filling_loader(stand_in: PackedParameter, stock_loader: Callable[..., None]) -> Callable[..., None]:
    def load(parameter: torch.nn.Parameter, loaded_weight: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        with stand_in.resident.filling() as buffer:
            target = _with_attributes(torch.nn.Parameter(buffer, requires_grad=False), stand_in)
            stock_loader(target, loaded_weight, *args, **kwargs)

    return load


def _with_attributes(parameter: torch.nn.Parameter, source: torch.nn.Parameter) -> torch.nn.Parameter:
    own = ("resident", "handle", "rows", "stock_loader")
    parameter.__dict__.update({name: value for name, value in source.__dict__.items() if name not in own})
    return parameter
