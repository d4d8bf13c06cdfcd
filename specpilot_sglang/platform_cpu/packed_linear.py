"""Linear layers over weights that oneDNN has packed once.

On one core a step of SmolLM2 reads its BF16 weights about 1.5 times faster this way than through torch's own call,
which repacks or walks them row by row each time. Packed copies cost the weights' memory once more.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import torch
import torch.nn.functional as F

#: Rows the packed layout is made for; it serves any number.
_TYPICAL_ROWS = 8
#: Share of the memory free at first use that packed copies may take in all.
_MEMORY_SHARE = 0.4
_ATTRIBUTE = "_specpilot_packed"


@dataclass(frozen=True)
class _Packed:
    address: int
    generation: int
    weight: torch.Tensor


class _Budget:
    left: float | None = None

    def take(self, size: int) -> bool:
        if self.left is None:
            self.left = _MEMORY_SHARE * psutil.virtual_memory().available
        if size > self.left:
            return False
        self.left -= size
        return True


_budget = _Budget()
_generation = 0


def forget() -> None:
    """Have every packed copy made anew at its next use.

    SGLang's loaders write through `param.data`, which leaves a tensor's version counter as it was.
    """
    global _generation
    _generation += 1


def renew_after_update(stock: Any) -> Any:
    """Replacement of the context in which SGLang runs every `update_weights_*` request."""

    @contextlib.contextmanager
    def observe(updater: Any, source: str) -> Iterator[None]:
        try:
            with stock(updater, source):
                yield
        finally:
            forget()

    return observe


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """F.linear(x, weight, bias) for [..., in] rows and a [out, in] weight that stays the same between calls.

    The packed copy lives on the weight; it is renewed when the weight's storage changes and after `forget`.
    """
    if weight.dtype != x.dtype or not _pays(x, weight):
        return F.linear(x, weight, bias)
    packed = _packed(weight)
    if packed is None:
        return F.linear(x, weight, bias)
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return result


def _pays(x: torch.Tensor, weight: torch.Tensor) -> bool:
    # For a single float32 row torch's matrix-vector product is the faster one.
    if x.dtype == torch.float32:
        return x.numel() > x.shape[-1] and _available()
    return x.dtype == torch.bfloat16 and _available()


def _packed(weight: torch.Tensor) -> torch.Tensor | None:
    known: _Packed | None = weight.__dict__.get(_ATTRIBUTE)
    if known is not None and known.address == weight.data_ptr() and known.generation == _generation:
        return known.weight
    if known is None and not _budget.take(weight.numel() * weight.element_size()):
        return None
    with torch.inference_mode():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _TYPICAL_ROWS)
    weight.__dict__[_ATTRIBUTE] = _Packed(weight.data_ptr(), _generation, packed)
    return packed


@functools.cache
def _available() -> bool:
    # Internal operators of torch: use them only where they exist and compute what they should.
    try:
        weight, x = torch.randn(32, 16), torch.randn(3, 16)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)
        result = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        return torch.allclose(result, F.linear(x, weight), atol=1e-4)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def unquantized_apply(stock: Any) -> Any:
    """Replacement of `UnquantizedLinearMethod.apply`."""

    def apply(method: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return linear(x, layer.weight, bias)

    return apply


def compute_lm_head(stock: Any) -> Any:
    """Replacement of `LogitsProcessor._compute_lm_head` for a plain dense head; stock's own for any other."""
    from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method

    def compute(
        processor: Any, hidden_states: torch.Tensor, lm_head: Any, embedding_bias: Any = None, *, out: Any = None
    ) -> torch.Tensor:
        method = getattr(lm_head, "quant_method", None)
        unusual = (
            hasattr(lm_head, "set_lora")
            or should_apply_lm_head_quant_method(lm_head, method)
            or not hasattr(lm_head, "weight")
            or processor.use_fp32_lm_head
            or processor.rl_on_policy_target is not None
        )
        if unusual:
            logits: torch.Tensor = stock(processor, hidden_states, lm_head, embedding_bias, out=out)
            return logits
        return linear(hidden_states.to(lm_head.weight.dtype), lm_head.weight)

    return compute


def greedy_draft(stock: Any) -> Any:
    """Replacement of `DFlashWorkerV2._greedy_sample_from_vocab_parallel_head` for one rank's plain dense head."""
    from sglang.srt.runtime_context import get_parallel
    from sglang.srt.speculative.dflash_utils import is_dense_head_weight

    def sample(worker: Any, *, hidden_states: torch.Tensor, lm_head: Any, chunk_size: int = 256) -> torch.Tensor:
        weight: Any = getattr(lm_head, "weight", None)
        shard: Any = getattr(lm_head, "shard_indices", None)
        plain = (
            shard is not None
            and is_dense_head_weight(weight)
            and get_parallel().tp_group.world_size == 1
            and shard.num_added_elements == 0
            and hidden_states.numel() > 0
        )
        if not plain:
            tokens: torch.Tensor = stock(worker, hidden_states=hidden_states, lm_head=lm_head, chunk_size=chunk_size)
            return tokens
        logits = linear(hidden_states.to(lm_head.weight.dtype), lm_head.weight)
        return logits[:, : shard.num_org_elements].argmax(-1) + shard.org_vocab_start_index

    return sample
