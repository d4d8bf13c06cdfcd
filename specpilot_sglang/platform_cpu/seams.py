"""Every change this platform makes to torch and SGLang: one table, applied once, undone on request."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specpilot_sglang import SGLANG_VERSION
from specpilot_sglang.errors import PatchDriftError
from specpilot_sglang.patching.source import fingerprint
from specpilot_sglang.platform_cpu import ops, packed_linear
from specpilot_sglang.platform_cpu.known_sources import KNOWN_SOURCES
from specpilot_sglang.platform_cpu.spec_sampling import chain_sampling_target_only


@dataclass(frozen=True)
class Seam:
    """One replaced symbol.

    Attributes:
        target: `module:dotted.name`.
        make: receives the stock object, returns its replacement.
        why: the reason, one line.
    """

    target: str
    make: Callable[[Any], Any]
    why: str


def _fixed(value: Any) -> Callable[[Any], Any]:
    return lambda _stock: value


def _cpu_kernels(stock: Any) -> Any:
    def impl(library: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> Any:
        if getattr(library, "ns", "") == "sglang" and dispatch_key == "PrivateUse1":
            dispatch_key = "CPU"
        return stock(library, op_name, fn, dispatch_key, **options)

    return impl


def _record_stream(stock: Any) -> Any:
    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        if tensor.device.type != "cpu":
            stock(tensor, stream)

    return record_stream


def _pin_memory(stock: Any) -> Any:
    def pin_memory(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor

    return pin_memory


def _keep_embeds_dtype(stock: Any) -> Any:
    def extend_forward_kwargs(runner: Any, forward_batch: Any, pp_proxy_tensors: Any) -> dict[str, Any]:
        kwargs: dict[str, Any] = stock(runner, forward_batch, pp_proxy_tensors)
        embeds = forward_batch.input_embeds
        if embeds is not None and embeds.dtype != kwargs["input_embeds"].dtype and embeds.dtype == runner.dtype:
            kwargs["input_embeds"] = embeds
        return kwargs

    return extend_forward_kwargs


_ALLOCATION = "sglang.srt.mem_cache.allocation"
_DFLASH_UTILS = "sglang.srt.speculative.dflash_utils"

#: Applied when the platform is resolved, which is before SGLang registers its first operator.
EARLY_SEAMS = (
    Seam(
        "torch.library:Library.impl",
        _cpu_kernels,
        "SGLang gives an out-of-tree platform's operators (tensor-parallel collectives) to torch's PrivateUse1 alone",
    ),
)

#: Applied when a worker imports its model runner.
WORKER_SEAMS = (
    Seam("torch:Tensor.record_stream", _record_stream, "torch has no CPU kernel for it; CPU work runs in order"),
    Seam("torch:Tensor.pin_memory", _pin_memory, "needs a GPU driver; the hybrid scheduler pins without asking"),
    Seam(f"{_ALLOCATION}:assign_req_to_token_pool_func", _fixed(ops.assign_req_to_token_pool), "Triton kernel"),
    Seam(f"{_ALLOCATION}:get_last_loc", _fixed(ops.last_loc), "picks Triton for any backend but torch_native"),
    Seam(
        "sglang.kernels.ops.attention.table_qk_norm_rope:table_qk_norm_rope_",
        _fixed(ops.table_qk_norm_rope_),
        "Triton kernel on the BF16 DFlash drafter's path",
    ),
    Seam(
        f"{_DFLASH_UTILS}:tree_speculative_sampling_target_only",
        _fixed(chain_sampling_target_only),
        "comes from sgl_kernel; without it DFLASH answers temperature > 0 greedily",
    ),
    Seam(f"{_DFLASH_UTILS}:_DFLASH_SAMPLING_VERIFY_AVAILABLE", _fixed(True), "the torch kernel above exists"),
)

#: Applied once a model is loaded, when the modules they touch are complete.
LOADED_SEAMS = (
    Seam(
        "sglang.srt.model_executor.model_runner:ModelRunner._extend_forward_kwargs",
        _keep_embeds_dtype,
        "stock rounds the drafter's input embeddings to BF16 under a float32 model",
    ),
    Seam(
        "sglang.srt.layers.quantization.unquant:UnquantizedLinearMethod.apply",
        packed_linear.unquantized_apply,
        "speed: weights packed once for oneDNN",
    ),
    Seam(
        "sglang.srt.layers.logits_processor:LogitsProcessor._compute_lm_head",
        packed_linear.compute_lm_head,
        "speed: the LM head is a fifth of a small model's bytes",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.weight_updater:SchedulerWeightUpdaterManager._observe_weight_load",
        packed_linear.renew_after_update,
        "packed copies must follow a weight update",
    ),
)

#: Applied with the above where a DFLASH drafter was asked for.
DFLASH_SEAMS = (
    Seam(
        "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2._greedy_sample_from_vocab_parallel_head",
        packed_linear.greedy_draft,
        "speed: the drafter reads the same LM head",
    ),
)

_FLA = "sglang.kernels.ops.attention.fla"
_LINEAR = "sglang.kernels.ops.attention.linear"
_MAMBA = "sglang.kernels.ops.mamba"
_GDN_KERNEL = "sglang.srt.layers.attention.linear.kernels.gdn_triton"


def hybrid_seams() -> tuple[Seam, ...]:
    """Seams of Gated DeltaNet models, applied once such a model is loaded."""
    from specpilot_sglang.platform_cpu import gdn_ops, gdn_state

    conv, scatter = f"{_MAMBA}.causal_conv1d_triton", f"{_MAMBA}.mamba_state_scatter_triton"
    triton = "Triton kernel"
    return (
        Seam(f"{conv}:causal_conv1d_fn", _fixed(gdn_ops.conv1d_prefill), triton),
        Seam(f"{conv}:causal_conv1d_update", _fixed(gdn_ops.conv1d_update), triton),
        Seam(f"{_LINEAR}.fused_gdn_gating:fused_gdn_gating", _fixed(gdn_ops.gdn_gating), triton),
        Seam(f"{_FLA}.chunk:chunk_gated_delta_rule", _fixed(gdn_ops.chunk_prefill), "Triton kernel, refuses float32"),
        Seam(
            f"{_LINEAR}.fused_sigmoid_gating_recurrent:fused_sigmoid_gating_delta_rule_update",
            _fixed(gdn_ops.recurrent_update),
            triton,
        ),
        Seam(f"{_GDN_KERNEL}:TritonGDNKernel.supports_packed_decode", _fixed(False), "another Triton kernel"),
        Seam(f"{_FLA}.layernorm_gated:layernorm_fn", _fixed(gdn_ops.gated_rms_norm), triton),
        Seam(
            "sglang.kernels.ops.attention.triton_gdn_fused_proj:fused_qkvzba_split_reshape_cat_contiguous",
            _fixed(gdn_ops.split_qkvz_ba),
            triton,
        ),
        Seam("sglang.kernels.ops.elementwise.elementwise:fused_sigmoid_mul", _fixed(gdn_ops.sigmoid_mul), triton),
        Seam(f"{scatter}:fused_mamba_state_scatter_with_mask", _fixed(gdn_state.scatter_accepted), triton),
        Seam(f"{scatter}:fused_conv_window_scatter_with_mask", _fixed(gdn_state.scatter_accepted), triton),
        Seam(f"{scatter}:_conv_multi_eligible", _fixed(lambda _pairs: False), "picks a Triton kernel for BF16 windows"),
        Seam(f"{scatter}:track_mamba_states_if_needed", _fixed(gdn_state.track_states), triton),
        Seam(f"{scatter}:track_mamba_states_all_layers", _fixed(gdn_state.track_states_all_layers), triton),
    )


_undo: list[Callable[[], None]] = []
_applied: set[str] = set()


def apply_seams(seams: tuple[Seam, ...]) -> None:
    """Apply each seam once in this process, also where SGLang imported the stock object by name.

    Raises:
        PatchDriftError: a replaced function's source is not the one the seam was written against.
    """
    for seam in seams:
        if seam.target not in _applied:
            _apply(seam)
            _applied.add(seam.target)


def undo_seams() -> None:
    """Put every stock object back, last change first."""
    while _undo:
        _undo.pop()()
    _applied.clear()


def _apply(seam: Seam) -> None:
    module_name, _, path = seam.target.partition(":")
    owner: Any = importlib.import_module(module_name)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    own = name in vars(owner)
    stock = getattr(owner, name)
    _check_source(seam.target, stock)
    replacement = seam.make(stock)
    shared = not parents and callable(stock)
    setattr(owner, name, replacement)
    if shared:
        _rebind(name, stock, replacement)

    def undo() -> None:
        if own:
            setattr(owner, name, stock)
        else:
            delattr(owner, name)
        if shared:
            _rebind(name, replacement, stock)

    _undo.append(undo)


def _check_source(target: str, stock: Any) -> None:
    known = KNOWN_SOURCES.get(target)
    if known is None:
        return
    try:
        found = fingerprint(stock)
    except (OSError, TypeError):  # no Python source at all
        found = ""
    if found != known:
        raise PatchDriftError(
            f"{target.partition(':')[2]} is not the one of SGLang {SGLANG_VERSION} that the CPU platform replaces",
            where=target.partition(":")[0],
            fix=f"pip install sglang=={SGLANG_VERSION}, or choose another platform with SGLANG_PLATFORM",
        )


def _rebind(name: str, old: Any, new: Any) -> None:
    # `from module import name` leaves copies behind.
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("sglang.") and vars(module).get(name) is old:
            setattr(module, name, new)
