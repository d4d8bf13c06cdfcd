"""Decodes packed tensors inside a stream of checkpoint tensors, before a model's own loader sees them.

Every loader of SGLang (merged qkv, gate_up, Gated-DeltaNet projections, tensor-parallel slices, tied embeddings)
then gets the original names and BF16 tensors, one at a time, and works unmodified. For a GPU the 12 bits are sent there
and decoded there, and threads check the hashes meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12 import codec, codec_torch, side
from specpilot_sglang.w12.checkpoint import PART_A, PART_B, PART_SIDE, PARTS
from specpilot_sglang.w12.stats import STATS
from specpilot_sglang.w12.tensorfile import check_hash

Named = tuple[str, torch.Tensor]
#: Threads that hash decoded tensors, and tensors that may wait for them (they are on the GPU until hashed).
_HASHERS, _WAITING = 8, 8


def decode_stream(tensors: Iterable[Named], device: torch.device | None = None) -> Iterator[Named]:
    """Yield `tensors` with each packed tensor's three parts replaced by the original BF16 tensor.

    Parts may come in any order, with other tensors between them; those yield at once.

    Args:
        tensors: what the checkpoint's files hold.
        device: decode there; None decodes with numpy in host memory.

    Raises:
        W12Error: a part is missing, a tensor comes twice (packed and plain too), is damaged, or does not decode to the
            bits that were packed.
    """
    waiting: dict[str, dict[str, torch.Tensor]] = {}
    finished: set[str] = set()
    with _Hashes() as hashes:
        yield from _decode_each(tensors, waiting, finished, device, hashes)
    if waiting:
        name, parts = next(iter(waiting.items()))
        missing = next(p for p in PARTS if p not in parts)
        raise W12Error(f"part {missing[1:]} is missing", where=name, fix="fetch or pack the checkpoint again")


def _decode_each(
    tensors: Iterable[Named],
    waiting: dict[str, dict[str, torch.Tensor]],
    finished: set[str],
    device: torch.device | None,
    hashes: _Hashes,
) -> Iterator[Named]:
    plain: set[str] = set()
    for name, tensor in tensors:
        part = next((p for p in PARTS if name.endswith(p)), None)
        original = name.removesuffix(part or "")
        twice = original in finished or (original in waiting if part is None else original in plain)
        if twice or (part is not None and part in waiting.get(original, ())):
            raise W12Error("comes twice", where=name, fix="remove the file that does not belong to the model")
        if part is None:
            plain.add(name)
            yield name, tensor
            continue
        parts = waiting.setdefault(original, {})
        parts[part] = tensor
        if len(parts) == len(PARTS):
            del waiting[original]
            finished.add(original)
            decoded = decode_parts(parts, original) if device is None else hashes.decode(parts, original, device)
            yield original, decoded
            STATS.decoded += 1


def decode_parts(parts: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """Return the BF16 tensor of one packed tensor's parts, in host memory, checked by its SHA-256."""
    a, b, blob = (_bytes(parts[p], name + p) for p in (PART_A, PART_B, PART_SIDE))
    matrix, header = side.load(a, b, blob.tobytes(), name)
    bits = codec.decode(matrix)
    check_hash(bits, header.sha256, name)
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).reshape(header.shape)


class _Hashes:
    """Checks hashes behind the stream's back; an exit without an error means that every tensor was right."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pending: deque[Future[None]] = deque()

    def __enter__(self) -> _Hashes:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            while self._pending and kind is None:
                self._pending.popleft().result()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)

    def decode(self, parts: dict[str, torch.Tensor], name: str, device: torch.device) -> torch.Tensor:
        """Return the BF16 tensor of one packed tensor's parts on `device`; its SHA-256 is checked later.

        Raises:
            W12Error: the parts are damaged, or an earlier tensor did not decode to the bits that were packed.
        """
        a, b, blob = (_bytes(parts[p], name + p) for p in (PART_A, PART_B, PART_SIDE))
        matrix, header = side.load(a, b, blob.tobytes(), name)
        decoded = codec_torch.decode(codec_torch.W12Tensor.from_numpy(matrix, device))
        self._pool = self._pool or ThreadPoolExecutor(_HASHERS)
        self._pending.append(self._pool.submit(_check, decoded, header.sha256, name))
        if len(self._pending) > _WAITING:
            self._pending.popleft().result()
        return decoded.reshape(header.shape)


def _check(decoded: torch.Tensor, sha256: bytes, name: str) -> None:
    check_hash(decoded.view(torch.int16).cpu().numpy().view(np.uint16), sha256, name)


def _bytes(part: torch.Tensor, name: str) -> np.ndarray:
    if part.dtype != torch.uint8:
        raise W12Error(f"is {part.dtype}, not uint8", where=name, fix="fetch or pack the checkpoint again")
    return part.detach().cpu().contiguous().numpy()
