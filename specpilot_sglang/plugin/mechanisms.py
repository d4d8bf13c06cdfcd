"""Turns an overlay's mechanisms on in this process."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import PluginError
from specpilot_sglang.overlay import LoadedOverlay, load_overlay
from specpilot_sglang.patching import AppliedPatch, Patch
from specpilot_sglang.plugin import counters
from specpilot_sglang.plugin.active import Active
from specpilot_sglang.plugin.known_sources import around

_WORKERS = {
    "DFLASH": "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2.forward_batch_generation",
    "DSPARK": "sglang.srt.speculative.dspark_components.dspark_worker_v2:DSparkWorkerV2.forward_batch_generation",
}

#: Counts every draft-and-verify step of this rank.
SPEC_STEPS = "speculative_steps"


def install_w12(active: Active) -> list[AppliedPatch]:
    """Register the weight format in this process when weights are W12.

    Raises:
        PatchDriftError: SGLang's weights iterator is not the known one.
    """
    if active.w12 is None:
        return []
    from specpilot_sglang.w12 import quant_method

    return quant_method.register(**active.w12)


def install_mechanisms(active: Active) -> list[Patch]:
    """Return the patches of the overlay in use, none in stock mode.

    Raises:
        PluginError: the overlay's files changed since the launching process read them, or its Python fails.
    """
    if active.stock:
        return []
    loaded = load_overlay(active.path)
    if loaded.sha256 != active.sha256:
        raise PluginError(
            "the overlay's files changed while the server was starting", where=loaded.path, fix="start the server again"
        )
    # The tree's worker is a subclass of the counted one, so it comes after the counter.
    return [*_step_counter(active.algorithm), *_tree(active), *_overlay_patches(loaded)]


def _step_counter(algorithm: str | None) -> Iterable[Patch]:
    target = _WORKERS.get(algorithm or "")
    if target is None:
        return
    counters.declare(SPEC_STEPS)

    def count(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        counters.hit(SPEC_STEPS)
        return original(*args, **kwargs)

    yield around(target, count, "counts draft-and-verify steps")


def _tree(active: Active) -> Iterable[Patch]:
    if active.tree is None:
        if active.algorithm != "DFLASH":
            return []
        from specpilot_sglang.tree.patches import slot_table_patch

        # A chain's blocks reach past the context limit as a tree's rows do.
        return [slot_table_patch()]
    from specpilot_sglang.tree.patches import tree_patches
    from specpilot_sglang.tree.settings import TreeSettings

    return tree_patches(TreeSettings(**active.tree), SPEC_STEPS)


def _overlay_patches(loaded: LoadedOverlay) -> Iterable[Patch]:
    for ref in loaded.overlay.patches:
        file = Path(loaded.folder) / ref.file
        where = f"{file}:{ref.function}"
        try:
            patches = list(getattr(_import(file), ref.function)())
        except Exception as exc:
            raise PluginError(
                f"the overlay's Python failed ({type(exc).__name__}: {exc})", where=where, fix="repair it"
            ) from exc
        wrong = [p for p in patches if not isinstance(p, Patch)]
        if wrong:
            raise PluginError(
                f"must return specpilot_sglang.patching.Patch objects, not {type(wrong[0]).__name__}", where=where
            )
        yield from patches


def _import(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"specpilot_overlay_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
