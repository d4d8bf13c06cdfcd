"""Which weights W12 serves: those a measured table says decode faster than in BF16 (`decide`).

No weight is kept twice, so the choice is made once for each weight, at load. `specpilot bench gemm --table` writes
the table, `dispatch.json`, one entry for each GPU and shape. A GPU or shape that was not measured follows a rule of
size: below it, launches cost more than reading the weight.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from specpilot_sglang.errors import W12Error
from specpilot_sglang.kernels.w12_gemm.tiling import MAX_TOKENS, UNIT_ROWS
from specpilot_sglang.w12.codec_torch import W12Tensor

TABLE = Path(__file__).with_name("dispatch.json")
#: Two runs of the baseline itself differ by this much.
NOISE = 0.02
#: Most tokens of a step that counts as decoding alone, and what a weight may lose between that and 64 tokens.
DECODING, TRADE = 32, 0.07
#: Weights of the smallest matrix that an unmeasured GPU or shape serves as W12.
SMALLEST = 1 << 24
#: Share of escapes in sixteen rows up to which large weights are not slower than BF16 (docs/measured.md).
MOST_ESCAPES = 5e-4


def wins(n: int, k: int, gpu: str) -> bool:
    """Tell whether a weight [n, k] is served as W12 on a GPU of this name.

    `SPECPILOT_W12_DISPATCH` may be `always` or `never`, for tests; `table` is the default.

    Raises:
        W12Error: another value of the variable, or a table that cannot be read.
    """
    choice = os.environ.get("SPECPILOT_W12_DISPATCH", "table")
    if choice not in ("table", "always", "never"):
        raise W12Error(f"SPECPILOT_W12_DISPATCH is {choice!r}", fix="set it to table, always or never")
    if choice != "table":
        return choice == "always"
    known = _entries().get((gpu, n, k))
    return n * k >= SMALLEST if known is None else known


def densest(weight: W12Tensor) -> float:
    """Return the share of escapes in the sixteen rows that have most: one warp puts all of them in place."""
    if not weight.n or not weight.k:
        return 0.0
    counts = weight.row_ptr.diff()
    counts = torch.nn.functional.pad(counts, (0, -counts.numel() % UNIT_ROWS)).view(-1, UNIT_ROWS).sum(1)
    return float(counts.max()) / (UNIT_ROWS * weight.k)


def decide(ratios: Mapping[int, float]) -> bool:
    """Tell whether speed ratios to BF16, by number of tokens, are those of a weight to serve as W12.

    A trade: decoding reads every weight once a step and takes most of a server's time, a prompt reads it once a chunk.
    So a weight must lose nothing up to 32 tokens; with up to 64, as when drafts are verified, it may lose 7 %, less
    than it gains with fewer; what it loses with more tokens (docs/measured.md) does not count.

    Raises:
        ValueError: nothing was measured up to 32 tokens.
    """
    decoding = min(r for m, r in ratios.items() if m <= DECODING)
    verifying = min(r for m, r in ratios.items() if m <= MAX_TOKENS)
    return decoding >= 1 - NOISE and verifying >= 1 - TRADE


def write(
    path: Path, gpu: str, about: Mapping[str, Any], ratios: Mapping[tuple[int, int], Mapping[int, float]]
) -> None:
    """Replace the entries of one GPU in a table; other GPUs' stay.

    Args:
        path: the table; made when it is not there.
        gpu: name of the GPU.
        about: how it was measured (date, versions, command).
        ratios: by shape and number of tokens, time of the best BF16 kernel over time of W12.
    """
    table = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    shapes = [
        {"n": n, "k": k, "w12": decide(cells), "ratios": {str(m): round(r, 3) for m, r in cells.items()}}
        for (n, k), cells in ratios.items()
    ]
    table[gpu] = {**about, "shapes": shapes}
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    _entries.cache_clear()


@cache
def _entries() -> dict[tuple[str, int, int], bool]:
    try:
        table = json.loads(TABLE.read_text(encoding="utf-8"))
        return {(gpu, s["n"], s["k"]): bool(s["w12"]) for gpu, s in _shapes(table)}
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise W12Error(f"the dispatch table cannot be read ({exc})", where=TABLE, fix="reinstall the package") from exc


def _shapes(table: Mapping[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    return ((gpu, shape) for gpu, entry in table.items() for shape in entry["shapes"])
