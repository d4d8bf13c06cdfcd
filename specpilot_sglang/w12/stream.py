"""Decodes packed tensors inside a stream of checkpoint tensors, before a model's own loader sees them.

Every loader of SGLang (merged qkv, gate_up, Gated-DeltaNet projections, tensor-parallel slices, tied embeddings)
then gets the original names and BF16 tensors and works unmodified.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12 import codec, side
from specpilot_sglang.w12.checkpoint import PART_A, PART_B, PART_SIDE, PARTS
from specpilot_sglang.w12.stats import STATS
from specpilot_sglang.w12.tensorfile import check_hash

Named = tuple[str, torch.Tensor]


def decode_stream(tensors: Iterable[Named]) -> Iterator[Named]:
    """Yield `tensors` with each packed tensor's three parts replaced by the original BF16 tensor.

    Parts may come in any order, with other tensors between them; those yield at once.

    Raises:
        W12Error: a part is missing, comes twice, is damaged, or does not decode to the bits that were packed.
    """
    waiting: dict[str, dict[str, torch.Tensor]] = {}
    finished: set[str] = set()
    for name, tensor in tensors:
        part = next((p for p in PARTS if name.endswith(p)), None)
        if part is None:
            yield name, tensor
            continue
        original = name.removesuffix(part)
        parts = waiting.setdefault(original, {})
        if part in parts or original in finished:
            raise W12Error("comes twice", where=name, fix="remove the file that does not belong to the model")
        parts[part] = tensor
        if len(parts) == len(PARTS):
            del waiting[original]
            finished.add(original)
            yield original, decode_parts(parts, original)
            STATS.decoded += 1
    if waiting:
        name, parts = next(iter(waiting.items()))
        missing = next(p for p in PARTS if p not in parts)
        raise W12Error(f"part {missing[1:]} is missing", where=name, fix="fetch or pack the checkpoint again")


def decode_parts(parts: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """Return the BF16 tensor of one packed tensor's parts, in host memory, checked by its SHA-256."""
    a, b, blob = (_bytes(parts[p], name + p) for p in (PART_A, PART_B, PART_SIDE))
    matrix, header = side.load(a, b, blob.tobytes(), name)
    bits = codec.decode(matrix)
    check_hash(bits, header.sha256, name)
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).reshape(header.shape)


def _bytes(part: torch.Tensor, name: str) -> np.ndarray:
    if part.dtype != torch.uint8:
        raise W12Error(f"is {part.dtype}, not uint8", where=name, fix="fetch or pack the checkpoint again")
    return part.detach().cpu().contiguous().numpy()
