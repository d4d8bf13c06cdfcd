"""What a pass must at least read and compute, from the checkpoints' own headers."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.cost.table import Work

_EMBEDDING = ("embed_tokens.weight", "wte.weight")
_HEAD = "lm_head.weight"


def work_of(target: Path, draft: Path, bytes_per_weight: float = 2.0) -> Work:
    """Return the work of one target pass and one draft pass.

    Weights are read once a pass, whatever its width; keys, values and activations are left out. A dense model is
    assumed: every matrix takes part in every token. A parallel drafter uses the target's head for its drafts.

    Args:
        target: folder with safetensors.
        draft: the drafter's.
        bytes_per_weight: as served; 2 for BF16, 1.5 for weights that a kernel reads as W12.

    Raises:
        SpecPilotError: a folder has no readable safetensors.
    """
    body, embedding, head = _matrices(target)
    head = head or embedding  # tied
    own, _, own_head = _matrices(draft)
    drafted = own + (own_head or head)
    whole = body + head
    return Work(whole * bytes_per_weight, drafted * bytes_per_weight, 2.0 * whole, 2.0 * drafted)


def _matrices(folder: Path) -> tuple[int, int, int]:
    """Return the numbers of weights in matrices, in the embedding and in the head."""
    body = embedding = head = 0
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise SpecPilotError("no safetensors", where=folder, fix="give a local Hugging Face folder")
    for name, shape in (row for file in files for row in _shapes(file)):
        count = math.prod(shape)
        if name.endswith(_EMBEDDING):
            embedding += count
        elif name.endswith(_HEAD):
            head += count
        elif len(shape) >= 2:
            body += count
    return body, embedding, head


def _shapes(file: Path) -> Iterator[tuple[str, list[int]]]:
    try:
        with file.open("rb") as handle:
            (size,) = struct.unpack("<Q", handle.read(8))
            header = json.loads(handle.read(size))
        yield from ((name, row["shape"]) for name, row in header.items() if name != "__metadata__")
    except (OSError, struct.error, ValueError, KeyError) as exc:
        raise SpecPilotError(f"cannot read the safetensors header ({exc})", where=file, fix="fetch it again") from exc
