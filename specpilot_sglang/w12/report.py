"""What packing did to each tensor, and totals over a checkpoint."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

#: What a field of `TensorReport` is in JSON, by its annotation.
_JSON_TYPES = {"str": str, "int": int, "bool": bool}


@dataclass(frozen=True)
class TensorReport:
    """One tensor of a packed checkpoint.

    Attributes:
        name, dtype, shape: of the original tensor.
        shard: file that holds it.
        packed: whether it is W12; otherwise it is stored unchanged.
        reason: why it was kept unchanged, empty when packed.
        stored: bytes it takes in the file's data section (W12: planes, bases, pointers, escapes, hash, padding).
        escapes, zeros, worst_row: escaped weights, exact zeros, most escapes in one row.
        zero_code: whether zeros have a code of their own.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str
    packed: bool
    reason: str
    stored: int
    escapes: int = 0
    zeros: int = 0
    worst_row: int = 0
    zero_code: bool = False

    @property
    def weights(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bits_per_weight(self) -> float:
        """Stored bits over elements."""
        return 8 * self.stored / max(1, self.weights)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {**asdict(self), "shape": list(self.shape), "bits_per_weight": self.bits_per_weight}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TensorReport:
        """Rebuild from `as_json`.

        Raises:
            AttributeError, KeyError, TypeError: not what `as_json` makes.
        """
        given = {k: v for k, v in value.items() if k != "bits_per_weight"}
        made = cls(**{**given, "shape": tuple(operator.index(d) for d in given["shape"])})
        for field in fields(cls):
            kind = _JSON_TYPES.get(str(field.type))
            if kind is not None and not isinstance(getattr(made, field.name), kind):
                raise TypeError(f"{field.name} is {getattr(made, field.name)!r}")
        return made


@dataclass(frozen=True)
class Totals:
    """Sums over tensors.

    Attributes:
        packed, kept: number of tensors.
        packed_weights, packed_bytes: of the packed tensors, every stored byte but the file headers.
        all_weights, all_bytes: of all tensors.
        escapes, zeros: of the packed tensors.
    """

    packed: int
    kept: int
    packed_weights: int
    packed_bytes: int
    all_weights: int
    all_bytes: int
    escapes: int
    zeros: int

    @property
    def bits_per_weight(self) -> float:
        """Stored bits over weights of the packed tensors."""
        return 8 * self.packed_bytes / max(1, self.packed_weights)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {**asdict(self), "bits_per_weight": self.bits_per_weight}


def totals(reports: Iterable[TensorReport]) -> Totals:
    """Sum up tensor reports."""
    every = list(reports)
    packed = [r for r in every if r.packed]
    return Totals(
        packed=len(packed),
        kept=len(every) - len(packed),
        packed_weights=sum(r.weights for r in packed),
        packed_bytes=sum(r.stored for r in packed),
        all_weights=sum(r.weights for r in every),
        all_bytes=sum(r.stored for r in every),
        escapes=sum(r.escapes for r in packed),
        zeros=sum(r.zeros for r in packed),
    )
