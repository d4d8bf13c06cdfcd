"""The deployment a loop works on: target, drafter, servers of each arm, first incumbent, and what is known of it."""

from __future__ import annotations

from pathlib import Path

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.presets import ar_args, block_size, dflash_args, float32_args
from specpilot_sglang.eval.provenance import gpu_names
from specpilot_sglang.loop.controller.settings import LoopSettings
from specpilot_sglang.loop.cost.table import CostTable, load_table

INCUMBENT, CANDIDATE, REFERENCE = "incumbent", "candidate", "reference"


def arms(settings: LoopSettings, incumbent: Path, candidate: Path) -> tuple[Arm, Arm, Arm]:
    """Return incumbent, candidate and reference; the small pair is prepared when no model is set.

    Args:
        settings: the loop.
        incumbent: folder of the incumbent's overlay.
        candidate: folder of the candidate's.
    """
    model, draft = pair(settings)
    # SGLang's running average of accepted tokens is renewed every 40 steps only, its counter in every one.
    extra = (*(float32_args() if settings.dtype == "float32" else ()), "--enable-metrics", *settings.server_args)
    common = tuple(dflash_args(model, draft, dtype=settings.dtype)) + extra
    plain = tuple(ar_args(model, dtype=settings.dtype)) + extra
    made = [Arm(name, common, overlay=str(f)) for name, f in ((INCUMBENT, incumbent), (CANDIDATE, candidate))]
    return made[0], made[1], Arm(REFERENCE, plain)


def pair(settings: LoopSettings) -> tuple[str, str]:
    """Return target and drafter; raise `SpecPilotError` when only one of them is set."""
    if (settings.model is None) != (settings.draft is None):
        raise SpecPilotError("give both or none", where="model, draft", fix="set model and draft")
    if settings.model is not None and settings.draft is not None:
        return settings.model, settings.draft
    from specpilot_sglang.assets import drafter_path, prepare_smollm2

    return str(prepare_smollm2()), str(drafter_path())


def first_overlay(settings: LoopSettings) -> str:
    """Return name or path of the overlay that the loop begins with."""
    if settings.overlay is not None:
        return settings.overlay
    if settings.model is not None:
        raise SpecPilotError(
            "no overlay to begin with", where="overlay", fix="set it; `specpilot overlay new` makes one"
        )
    return "smollm2-135m-dflash-cuda" if gpu_names() else "smollm2-135m-dflash-cpu"


def drafter_block(settings: LoopSettings) -> int:
    """Return the tokens that the drafter proposes at once."""
    if settings.draft is not None:
        return block_size(Path(settings.draft))
    from specpilot_sglang.assets import drafter_path

    return block_size(drafter_path())


def cost_table(settings: LoopSettings) -> CostTable | None:
    """Return the deployment's cost table; None when none is set."""
    return load_table(Path(settings.cost_table)) if settings.cost_table else None
