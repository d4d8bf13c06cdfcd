"""An embedding that is the LM head too: BF16 for looking tokens up, a packed copy for the product with every row.

The lookup reads one row a token and the product all of them, so the copy pays in speed; it costs three quarters of the
embedding's memory. Name `embed_tokens` in the overlay's `weights.exclude` to do without it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod

from specpilot_sglang.w12 import ops
from specpilot_sglang.w12.guards import head_reader, server_setting
from specpilot_sglang.w12.kernel import KernelBackend
from specpilot_sglang.w12.resident import ResidentWeight
from specpilot_sglang.w12.stats import STATS, LayerRecord

if TYPE_CHECKING:
    from specpilot_sglang.w12.method import W12Config

logger = logging.getLogger(__name__)


class W12TiedMethod(UnquantizedEmbeddingMethod):
    """Embedding method whose `apply`, the LM head's product, reads a packed copy."""

    def __init__(self, config: W12Config, prefix: str, backend: KernelBackend) -> None:
        self.config, self.prefix, self.backend = config, prefix, backend
        self._copy: ResidentWeight | None = None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Encode the copy, or encode it again in place after an update.

        Raises:
            W12Error: an update that does not fit into the copy's place, or a decode that is not bit-identical.
        """
        weight = layer.weight.data
        why = self._reason(weight)
        if not why:
            n, k = weight.shape
            self._copy = self._copy or ResidentWeight(
                n, k, weight.device, self.prefix, self.backend, self.config.max_bits
            )
            with self._copy.filling() as buffer:
                buffer.copy_(weight)
            record = self._copy.record
            why = record.reason if record else "nothing was loaded"
        if why:
            self._stay_bf16(layer, why)
            return
        assert self._copy is not None
        assert self._copy.record is not None
        self.backend.prepare(self._copy.packed)
        STATS.layers[f"{self.prefix} (tied head)"], STATS.backend = self._copy.record, self.backend

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return `x @ weight.T + bias` from the packed copy."""
        if self._copy is None:
            return super().apply(layer, x, bias)
        y = ops.w12_linear(x, self._copy.handle, self._copy.n)
        return y if bias is None else y.add_(bias)

    def _reason(self, weight: torch.Tensor) -> str:
        if self.config.excluded(self.prefix):
            return "excluded"
        if weight.dtype != torch.bfloat16:
            return f"{weight.dtype}, not BF16"
        n, k = weight.shape
        return head_reader() or self.backend.refuses(n, k, weight.device)

    def _stay_bf16(self, layer: torch.nn.Module, why: str) -> None:
        n, size = layer.weight.numel(), layer.weight.element_size()
        STATS.layers[f"{self.prefix} (tied head)"] = LayerRecord(n, n * size, 0, 0, False, why)
        layer.quant_method, self._copy = UnquantizedEmbeddingMethod(), None
        logger.info("specpilot: w12: the tied head %s stays BF16: %s", self.prefix, why)


def embeddings_are_tied() -> bool:
    """Tell whether this server's model multiplies by its embedding, from the model's config."""
    path = server_setting("model_path")
    if path is None:
        return False
    from transformers import PretrainedConfig

    config: dict[str, Any] = PretrainedConfig.get_config_dict(path, revision=server_setting("revision"))[0]
    text = config.get("text_config") or {}
    return bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
