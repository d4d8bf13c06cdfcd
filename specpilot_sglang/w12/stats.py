"""What W12 did in this process, for the attestation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specpilot_sglang.w12.kernel import KernelBackend


@dataclass(frozen=True)
class LayerRecord:
    """One linear layer of this rank.

    Attributes:
        weights, stored_bytes, escapes, zeros, zero_code: of the encoded weight.
        reason: why the layer was kept BF16, empty when it was packed.
        kernel: the GEMM kernel that reads the packed weight; empty when the weight is decoded and served as BF16.
        resident_bytes: memory of the packed weight in the kernel's order, 0 when there is none.
    """

    weights: int
    stored_bytes: int
    escapes: int
    zeros: int
    zero_code: bool
    reason: str = ""
    kernel: str = ""
    resident_bytes: int = 0

    @property
    def bits_per_weight(self) -> float:
        """Stored bits over weights."""
        return 8 * self.stored_bytes / max(1, self.weights)


@dataclass
class LoadStats:
    """Records of one model in this process.

    Attributes:
        layers: by module path; loading weights again replaces a record.
        decoded: tensors of packed checkpoints that were decoded, each checked by its SHA-256.
        backend: the kernel that reads packed weights, None while none does.
        device_bytes: (allocated, reserved) by torch on the GPU when the last packed layer was done: weights, and
            before the KV cache exists nothing else.
    """

    layers: dict[str, LayerRecord] = field(default_factory=dict)
    decoded: int = 0
    backend: KernelBackend | None = None
    device_bytes: tuple[int, int] = (0, 0)

    def summary(self) -> dict[str, Any]:
        """Return totals over the layers, of JSON values only."""
        packed = [r for r in self.layers.values() if not r.reason]
        weights, stored = sum(r.weights for r in packed), sum(r.stored_bytes for r in packed)
        return {
            "tensors_packed": len(packed),
            "weights_packed": weights,
            "bits_per_weight": 8 * stored / weights if weights else None,
            "escapes": sum(r.escapes for r in packed),
            "zeros": sum(r.zeros for r in packed),
            "kept": {name: r.reason for name, r in self.layers.items() if r.reason},
            "kept_weights": sum(r.weights for r in self.layers.values() if r.reason),
            "kernel_layers": sum(bool(r.kernel) for r in packed),
            "kernel_weights": sum(r.weights for r in packed if r.kernel),
            "resident_bytes": sum(r.resident_bytes for r in packed),
            "device_bytes_allocated": self.device_bytes[0],
            "device_bytes_reserved": self.device_bytes[1],
            "kernel": {"name": self.backend.name, **self.backend.report()} if self.backend else None,
            "checkpoint_tensors_decoded": self.decoded,
        }


#: The process's only records: every W12 model of this process (target, and a drafter that asks for W12) adds to it.
STATS = LoadStats()
