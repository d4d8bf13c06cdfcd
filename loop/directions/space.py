"""The settings of an overlay that a search may turn, by direction, and what the cost model predicts for them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.cost.predict import Setting, predict
from specpilot_sglang.loop.cost.table import CostTable
from specpilot_sglang.loop.directions.direction import Choice, Parameter
from specpilot_sglang.overlay import Overlay, unsupported

BLOCK = "server_args.speculative_num_draft_tokens"


def parameters(overlay: Overlay, *, block: int, gpu: bool, table: CostTable | None) -> dict[str, tuple[Parameter, ...]]:
    """Return the settings by direction.

    Args:
        overlay: the incumbent.
        block: tokens that the drafter proposes at once.
        gpu: whether the deployment has a GPU; graphs and packed weights do nothing without one.
        table: for predictions; None without one.
    """
    widths = sorted({n for n in (2, 3, 4, 6, 8, 12, 16, 24, 32) if n <= block} | {block})
    block_size = Parameter(key=BLOCK, choices=tuple(widths), predicted=_block_gains(overlay, widths, table))
    bounded = overlay.tree.budget is not None or overlay.tree.max_depth is not None
    found = {
        "block-size": [] if bounded else [block_size],  # a tree's bounds give the width, and both may not be set
        "scheduling": [
            Parameter(key="server_args.disable_overlap_schedule", choices=(None, True)),
            Parameter(key="server_args.num_continuous_decode_steps", choices=(None, 2, 4)),
            Parameter(key="server_args.schedule_policy", choices=(None, "fcfs", "lpm")),
            Parameter(key="server_args.min_free_slots_delay", choices=(None, 1, 2)),
        ],
        "patches": [Parameter(key=f"patches.{n}", choices=(True, False)) for n in range(len(overlay.patches))],
    }
    if gpu:
        found["weights"] = [Parameter(key="weights.format", choices=("bf16", "w12"))]
        found["graphs"] = [
            Parameter(key="server_args.disable_cuda_graph_padding", choices=(None, True)),
            Parameter(key="server_args.triton_attention_num_kv_splits", choices=(None, 4, 8, 16)),
        ]
    found |= {name: rows for name, rows in _mechanisms(block).items() if _has(rows)}
    return {name: tuple(rows) for name, rows in found.items() if rows}


def value_of(overlay: Overlay, key: str, base: Overlay | None = None) -> Choice:
    """Return a parameter's value; for `patches.n`, whether the n-th patch of `base` (itself by default) is there."""
    if key.startswith("patches."):
        ref = (base or overlay).patches[int(key.partition(".")[2])]
        return ref in overlay.patches
    place: object = overlay
    for part in key.split("."):
        place = getattr(place, part)
    assert place is None or isinstance(place, int | float | bool | str)
    return place


def _mechanisms(block: int) -> dict[str, list[Parameter]]:
    budgets = tuple(n * block for n in (1, 2, 3, 4))  # the first has as many rows as the chain
    tied: dict[str, dict[str, Choice]] = {"null": {"tree.kind": "chain"}}
    tied |= {json.dumps(n): {"tree.kind": "best-first", BLOCK: None} for n in budgets}
    return {
        "tree": [
            Parameter(key="tree.budget", choices=(None, *budgets), sets=tied),
        ],
        "levels": [
            Parameter(key="verify.levels", choices=(1, 2)),
            Parameter(key="verify.cheap_rounds", choices=(0, 1, 2)),
        ],
    }


def _has(rows: Sequence[Parameter]) -> bool:
    """Whether this version carries out what the last choices ask for."""
    content: dict[str, object] = {"name": "probe"}
    for row in rows:
        last = row.choices[-1]
        for path, value in {row.key: last, **row.sets.get(json.dumps(last), {})}.items():
            section, key = path.split(".")
            part = content.setdefault(section, {})
            assert isinstance(part, dict)
            part[key] = value
    return not unsupported(Overlay.model_validate(content))


def _block_gains(overlay: Overlay, widths: Sequence[int], table: CostTable | None) -> dict[str, float]:
    """Return the predicted gain of each block size over the incumbent's; empty when nothing can be predicted."""
    if table is None or not table.accept:
        return {}
    now = int(value_of(overlay, BLOCK) or table.block)
    try:
        speeds = {width: _speed(table, width) for width in {*widths, now}}
    except SpecPilotError:
        return {}
    return {json.dumps(width): speeds[width] / speeds[now] - 1 for width in widths}


def _speed(table: CostTable, width: int) -> float:
    """Return the geometric mean over the table's suites of tokens a second at one request."""
    batch = min(p.batch for p in table.spec)
    logs = []
    for suite in table.accept:
        accept = table.distribution(suite, width)
        logs.append(math.log(predict(table, Setting(accept, width, batch)).tok_s(batch)))
    return math.exp(sum(logs) / len(logs))
