"""Every change this platform makes to torch and SGLang: one table, applied once, undone on request."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specpilot_sglang.platform_cpu import ops
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


def _record_stream(stock: Any) -> Any:
    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        if tensor.device.type != "cpu":
            stock(tensor, stream)

    return record_stream


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

#: Applied when a worker imports its model runner.
WORKER_SEAMS = (
    Seam("torch:Tensor.record_stream", _record_stream, "torch has no CPU kernel for it; CPU work runs in order"),
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
)

_undo: list[Callable[[], None]] = []
_applied: set[str] = set()


def apply_seams(seams: tuple[Seam, ...]) -> None:
    """Apply each seam once in this process, also where SGLang imported the stock object by name."""
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
    replacement = seam.make(stock)
    _set(owner, name, replacement, stock if own else None, restore=own)
    if not parents and callable(stock):
        _rebind(name, stock, replacement)


def _set(owner: Any, name: str, value: Any, stock: Any, restore: bool) -> None:
    setattr(owner, name, value)
    _undo.append((lambda: setattr(owner, name, stock)) if restore else (lambda: delattr(owner, name)))


def _rebind(name: str, stock: Any, replacement: Any) -> None:
    # `from module import name` leaves copies behind in modules imported earlier.
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("sglang.") and vars(module).get(name) is stock:
            _set(module, name, replacement, stock, restore=True)
