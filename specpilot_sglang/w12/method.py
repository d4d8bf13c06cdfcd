"""SGLang's quantization method `w12`: the configuration, and layers that decode at load.

On CUDA `kernel_method` keeps weights packed. Here, without a kernel, layers hold plain BF16 (or, under `--dtype
float32`, its exact FP32 widening) and SGLang's own loaders fill them. After loading, each layer's weight makes the
round trip through W12: encoded, decoded, compared bit for bit. The layer then serves the decoded weight, so its
outputs are stock's; the planes are not kept, because without a kernel that reads them they would only add memory.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12 import codec_torch
from specpilot_sglang.w12.guards import refuse_unsupported, server_setting
from specpilot_sglang.w12.kernel import FusedKernel, KernelBackend
from specpilot_sglang.w12.spec import DEFAULT_MAX_BITS, FORMAT_VERSION, base_bits, stored_bytes
from specpilot_sglang.w12.stats import STATS, LayerRecord

#: What fused modules are made of in checkpoints, so that an exclusion may name either.
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class W12Config(QuantizationConfig):
    """How this model's linear layers are packed.

    Class attributes are this process's settings for models that are packed at load (`quant_method.register`).
    """

    max_bits: float = DEFAULT_MAX_BITS
    exclude: tuple[str, ...] = ()
    #: Reads packed weights on any device; None: the fused kernel on CUDA, decoding at load elsewhere.
    backend: KernelBackend | None = None

    def __init__(self, packed: bool = False) -> None:
        super().__init__()
        self.packed = packed
        # SGLang builds the configuration before it enters the device's context.
        refuse_unsupported(packed, self.backend is not None or server_setting("device") == "cuda")

    @classmethod
    def get_name(cls) -> str:
        """Return the method's name."""
        return "w12"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """BF16, and FP32 which holds every BF16 value; FP16 does not."""
        return [torch.bfloat16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        """Decoding at load runs wherever BF16 does."""
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        """No file: a BF16 checkpoint without any quantization config is packed at load."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> W12Config:
        """Accept the `quantization_config` of a packed checkpoint.

        Raises:
            W12Error: it was packed in another version of the format.
        """
        if config.get("version") != FORMAT_VERSION:
            raise W12Error(
                f"W12 format version {config.get('version')}; this release reads version {FORMAT_VERSION}",
                where="config.json:quantization_config",
                fix="install the specpilot-sglang release that packed it, or pack the original again",
            )
        made = cls(packed=True)
        made.packed_modules_mapping = config.get("packed_modules_mapping") or {}
        return made

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """Return W12's method for linear layers, and for LM heads that a kernel reads.

        Experts and embeddings that are no head keep SGLang's own BF16 method.
        """
        from sglang.srt.layers.linear import LinearBase
        from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

        backend = self.kernel()
        if backend is not None and isinstance(layer, LinearBase | ParallelLMHead):
            from specpilot_sglang.w12.kernel_method import W12KernelMethod

            return W12KernelMethod(self, prefix, backend)
        if backend is not None and type(layer) is VocabParallelEmbedding:
            from specpilot_sglang.w12.tied_head import W12TiedMethod, embeddings_are_tied

            return W12TiedMethod(self, prefix, backend) if embeddings_are_tied() else None
        return W12LinearMethod(self, prefix) if isinstance(layer, LinearBase) else None

    @classmethod
    def kernel(cls) -> KernelBackend | None:
        """Return the kernel that reads packed weights on the device that models are being built on, None for none."""
        if cls.backend is not None:
            return cls.backend
        return FusedKernel() if torch.get_default_device().type == "cuda" else None

    def get_scaled_act_names(self) -> list[str]:
        """No activation is scaled."""
        return []

    def excluded(self, prefix: str) -> bool:
        """Tell whether a layer, or a checkpoint tensor that it is fused from, was excluded by name."""
        parent, _, last = prefix.rpartition(".")
        parts = self.packed_modules_mapping.get(last) or _FUSED.get(last, ())
        names = [prefix + ".weight", *(f"{parent}.{part}.weight" for part in parts)]
        return any(text in name for text in self.exclude for name in names)


class W12LinearMethod(UnquantizedLinearMethod):
    """Linear layer whose weight went through W12 and back."""

    def __init__(self, config: W12Config, prefix: str) -> None:
        self.config, self.prefix = config, prefix

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Encode, decode and compare the loaded weight; record its size.

        Raises:
            W12Error: packed checkpoint whose tensors nobody decoded, or a decode that is not bit-identical.
        """
        if self.config.packed and STATS.decoded == 0 and server_setting("load_format") != "dummy":
            raise W12Error(
                "the packed checkpoint's tensors were not decoded while loading",
                where=self.prefix,
                fix="load with --load-format auto, or unpack the checkpoint with `specpilot w12 unpack`",
            )
        weight = layer.weight.data
        bf16, reason = _as_bf16(weight)
        if self.config.excluded(self.prefix):
            reason = "excluded"
        record = _kept(weight, reason) if reason else self._round_trip(weight, bf16)
        STATS.layers[self.prefix] = record
        super().process_weights_after_loading(layer)

    def _round_trip(self, weight: torch.Tensor, bf16: torch.Tensor) -> LayerRecord:
        encoded = codec_torch.encode(bf16)
        size = stored_bytes(
            encoded.n, encoded.k, encoded.col.numel(), base_bits(encoded.base.cpu().numpy()), weight.dim()
        )
        bits = 8 * size / weight.numel()
        if bits > self.config.max_bits:
            return _kept(weight, f"needs {bits:.3f} bits per weight")
        decoded = codec_torch.decode(encoded)
        if not torch.equal(decoded.view(torch.int16), bf16.view(torch.int16)):
            raise W12Error("the weight does not decode to its own bits", where=self.prefix, fix="report a bug")
        weight.copy_(decoded)
        return LayerRecord(weight.numel(), size, encoded.col.numel(), encoded.zeros, encoded.zero_code)


def _as_bf16(weight: torch.Tensor) -> tuple[torch.Tensor, str]:
    """Return the weight as BF16 bits, and why it has none (empty when it has)."""
    if weight.is_meta or weight.dim() != 2 or weight.numel() == 0:
        return weight, "not a loaded matrix"
    if weight.dtype == torch.float32:
        bits = weight.contiguous().view(torch.int32)
        narrow = (bits >> 16).to(torch.int16).view(torch.bfloat16)
        return narrow, "" if not (bits & 0xFFFF).any() else "float32 values that are not BF16"
    return weight, "" if weight.dtype == torch.bfloat16 else f"{weight.dtype}, not BF16"


def _kept(weight: torch.Tensor, reason: str) -> LayerRecord:
    return LayerRecord(weight.numel(), weight.numel() * weight.element_size(), 0, 0, False, reason)
