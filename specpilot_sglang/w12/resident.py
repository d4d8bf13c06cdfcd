"""A weight that lives packed on its device: filled shard by shard, encoded when complete, multiplied by a kernel.

Loaders write BF16 into a buffer that exists only while the weight is being filled, so loading a model needs the packed
model and a few layers more. A weight that is filled again (an update) keeps its packed storage: captured graphs hold
its address.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12.codec_torch import W12Tensor
from specpilot_sglang.w12.kernel import KernelBackend, encode
from specpilot_sglang.w12.spec import base_bits, stored_bytes
from specpilot_sglang.w12.stats import LayerRecord

logger = logging.getLogger(__name__)
_handles = itertools.count(1)
#: Every packed weight of this process by handle; the custom op finds its weight here.
RESIDENT: WeakValueDictionary[int, ResidentWeight] = WeakValueDictionary()


class ResidentWeight:
    """One [n, k] weight, in one of three states: being filled, packed, or plain BF16 because it would not pack.

    Attributes:
        n, k, device, where: its form, its place, and the layer's name for errors.
        handle: key in `RESIDENT`.
        packed: the kernel's form, None until first complete.
        plain: the BF16 matrix [n, k] when it needs more than `max_bits` bits per weight.
        record: what became of it, None until first complete.
    """

    def __init__(
        self, n: int, k: int, device: torch.device, where: str, backend: KernelBackend, max_bits: float
    ) -> None:
        self.n, self.k, self.device, self.where = n, k, device, where
        self.backend, self.max_bits = backend, max_bits
        self.packed: Any = None
        self.plain: torch.Tensor | None = None
        self.record: LayerRecord | None = None
        self._filling: torch.Tensor | None = None
        self._written: dict[tuple[Any, ...], int] = {}
        self._zero_code: bool | None = None
        self.handle = next(_handles)
        RESIDENT[self.handle] = self

    @contextmanager
    def filling(self) -> Iterator[torch.Tensor]:
        """Give the BF16 matrix [n, k] to write into; encode when every element has been written since last time.

        What is not written keeps its values, so a single shard can be replaced.

        Raises:
            W12Error: the complete weight cannot be encoded in place (see `seal`).
        """
        if self.plain is not None:
            yield self.plain
            return
        if self._filling is None:
            self._filling = self._buffer()
        with _Writes(self._filling, self._written):
            yield self._filling
        if sum(self._written.values()) >= self.n * self.k:
            self.seal()

    def seal(self) -> None:
        """Encode what was filled in; nothing to do when nothing was.

        Raises:
            W12Error: a weight that is packed already cannot take the new values in place, or the packed form does
                not decode to the same bits.
        """
        weight = self._filling
        if weight is None:
            return
        self._filling, self._written = None, {}
        encoded = encode(weight, self._zero_code)
        size = stored_bytes(self.n, self.k, encoded.col.numel(), base_bits(encoded.base.cpu().numpy()), 2)
        bits = 8 * size / weight.numel()
        if self.packed is None:
            why = f"needs {bits:.3f} bits per weight" if bits > self.max_bits else self.backend.declines(encoded)
            if why:
                self.plain = weight
                self.record = LayerRecord(weight.numel(), 2 * weight.numel(), 0, 0, False, why)
                return
        self._store(encoded)
        escapes, zeros, zero_code = encoded.col.numel(), encoded.zeros, encoded.zero_code
        del encoded  # an LM head's planes are gigabytes; the check below takes two more
        decoded = self.backend.decode(self.packed)
        if not torch.equal(decoded.view(torch.int16), weight.view(torch.int16)):
            raise W12Error("the weight does not decode to its own bits", where=self.where, fix="report a bug")
        resident = self.backend.nbytes(self.packed)
        self.record = LayerRecord(weight.numel(), size, escapes, zeros, zero_code, "", self.backend.name, resident)

    def dense(self) -> torch.Tensor:
        """Return the weight's exact BF16 matrix [n, k] in new memory (`plain` itself when it is not packed)."""
        if self.packed is None:
            if self.plain is None:
                raise W12Error("no weights were loaded", where=self.where, fix="check the checkpoint")
            return self.plain
        return self.backend.decode(self.packed)

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ weight.T` for x [..., k] bfloat16, through the kernel.

        Raises:
            W12Error: nothing was loaded.
        """
        if self.packed is None:
            raise W12Error("no weights were loaded", where=self.where, fix="check the checkpoint")
        return self.backend.linear(x, self.packed)

    def _buffer(self) -> torch.Tensor:
        if self.packed is not None:
            return self.backend.decode(self.packed)
        return torch.empty((self.n, self.k), dtype=torch.bfloat16, device=self.device)

    def _store(self, encoded: W12Tensor) -> None:
        if self.packed is None:
            self.packed = self.backend.pack(encoded)
            self._zero_code = encoded.zero_code
            return
        try:
            self.backend.refresh(self.packed, encoded)
        except W12Error as exc:
            raise W12Error(
                f"the new weight does not fit into the old one's place ({exc.what})",
                where=self.where,
                fix="start the server again with the new weights",
            ) from exc


class _Writes(TorchDispatchMode):
    """Notes which parts of a buffer are written: by place and form, so that a shard that comes twice counts once."""

    def __init__(self, buffer: torch.Tensor, written: dict[tuple[Any, ...], int]) -> None:
        super().__init__()
        self._storage, self._written = buffer.untyped_storage().data_ptr(), written

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _WRITING and args[0].untyped_storage().data_ptr() == self._storage:
            place = args[0]
            self._written[(place.storage_offset(), tuple(place.shape), tuple(place.stride()))] = place.numel()
        return result


_WRITING: set[Callable[..., Any]] = {
    torch.ops.aten.copy_.default,
    torch.ops.aten.fill_.Scalar,
    torch.ops.aten.fill_.Tensor,
    torch.ops.aten.zero_.default,
}
