"""Compares the GPU encoder, in Triton's interpreter or on a GPU, with the codec in torch; prints the differences.

Usage: encode_worker.py [cuda]
"""

from __future__ import annotations

import os
import sys

if "cuda" not in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import torch
from w12_data import gaussian

from specpilot_sglang.kernels.w12_encode import encode as module
from specpilot_sglang.kernels.w12_encode.encode import encode, takes
from specpilot_sglang.kernels.w12_encode.ref import encode_ref


def matrices() -> dict[str, torch.Tensor]:
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    wide = gaussian(6, 5000, 3)
    wide[2] *= 2.0**30
    wide[3, ::7] = 0.0
    wide[4] = 0.0
    sparse = gaussian(9, 256, 4)
    sparse[:, ::3] = -0.0
    sliced = gaussian(8, 130, 5)[:, 2:128]
    return {
        "every pattern": patterns.view(16, 4096),
        "every pattern in one row": patterns.view(1, -1),
        "gaussian": gaussian(33, 96, 1),
        "mixed rows": wide,
        "many zeros": sparse,
        "columns of a wider matrix": sliced,
        "zeros": torch.zeros(3, 64, dtype=torch.bfloat16),
        "two columns": gaussian(5, 2, 6),
    }


def main() -> None:
    device = "cuda" if "cuda" in sys.argv else "cpu"
    module._FLAGS = 1 << 14  # several parts of most matrices
    for name, host in matrices().items():
        weight = host.to(device) if host.is_contiguous() else host
        if device == "cuda" and not host.is_contiguous():
            weight = torch.nn.functional.pad(host, (2, 2)).cuda()[:, 2:-2]
        assert takes(weight), name
        for zero_code in (None, False, True):
            found, expected = encode(weight, zero_code), encode_ref(weight.cpu(), zero_code=zero_code)
            for field in ("a", "b", "base", "row_ptr", "col", "val"):
                if not torch.equal(getattr(found, field).cpu(), getattr(expected, field)):
                    print(f"DIFFERENT {name}, zero code {zero_code}: {field}")
            if (found.k, found.zero_code, found.zeros) != (expected.k, expected.zero_code, expected.zeros):
                print(f"DIFFERENT {name}, zero code {zero_code}: k, zero code or zeros")
            print(f"compared {name} {zero_code}")


if __name__ == "__main__":
    main()
