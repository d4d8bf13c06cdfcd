"""Stands where a layer's weight was: shape and dtype of the matrix, none of its memory, and no way to misread it.

SGLang has many paths that take `layer.weight` and hand it, or its address, to some other kernel. A packed weight must
not be read that way, and a plain tensor on the meta device would let writes vanish without a word. So this parameter
answers questions about its form and refuses everything else by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from specpilot_sglang.errors import W12Error

if TYPE_CHECKING:
    from specpilot_sglang.w12.resident import ResidentWeight

_PROPERTIES = (
    "shape", "dtype", "ndim", "layout", "is_meta", "is_cuda", "is_cpu", "is_sparse", "is_quantized", "is_nested",
    "requires_grad", "grad", "grad_fn", "is_leaf", "itemsize", "is_mkldnn", "_backward_hooks", "_base",
)  # fmt: skip
_METHODS = (
    "size", "dim", "numel", "nelement", "stride", "element_size", "is_floating_point", "is_complex", "is_contiguous",
    "requires_grad_", "is_inference", "storage_offset", "is_same_size",
)  # fmt: skip
_ALLOWED: set[Any] = {
    *(getattr(torch.Tensor, name).__get__ for name in _PROPERTIES),
    *(getattr(torch.Tensor, name) for name in _METHODS),
    torch.Tensor.requires_grad.__set__,
    torch.is_floating_point,
    torch.is_complex,
    torch.numel,
}


class PackedParameter(torch.nn.Parameter):
    """Parameter [N, K] whose values live, packed, in `resident`; `device` is where those are.

    `handle` and `rows` (N) are what the operator needs, as plain integers for torch.compile.
    """

    resident: ResidentWeight
    handle: int
    rows: int
    weight_loader: Callable[..., None]

    def __new__(cls, resident: ResidentWeight) -> PackedParameter:
        """Make the stand-in of one packed weight."""
        form = torch.empty((resident.n, resident.k), dtype=torch.bfloat16, device="meta")
        made: PackedParameter = torch.Tensor._make_subclass(cls, form, False)
        made.resident, made.handle, made.rows = resident, resident.handle, resident.n
        return made

    def __init__(self, resident: ResidentWeight) -> None:
        pass

    def __repr__(self) -> str:
        return f"PackedParameter([{self.resident.n}, {self.resident.k}], {self.resident.where})"

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedParameter:
        raise _refusal(self, "deepcopy")

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer what concerns form alone.

        Raises:
            W12Error: the call would read, write or move values.
        """
        mine = next(a for a in (*args, *(kwargs or {}).values()) if isinstance(a, cls))
        if func == torch.Tensor.device.__get__:
            return mine.resident.device
        if func in (torch.Tensor.detach, torch.Tensor.detach_):
            return mine
        if func not in _ALLOWED:
            raise _refusal(mine, _name(func))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def _name(func: Callable[..., Any]) -> str:
    """Return the name of a function, of the property where it is a getter or setter."""
    name = getattr(func, "__name__", str(func))
    return str(getattr(getattr(func, "__self__", None), "__name__", name)) if name in ("__get__", "__set__") else name


def _refusal(weight: PackedParameter, call: str) -> W12Error:
    return W12Error(
        f"this weight is packed and cannot be read as a plain matrix ({call})",
        where=weight.resident.where,
        fix="keep the layer BF16 with the overlay's weights.exclude, or serve without w12",
    )
