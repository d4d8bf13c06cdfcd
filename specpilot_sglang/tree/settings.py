"""What an overlay's `tree` asks for, checked against the drafter, as server arguments and worker settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specpilot_sglang.errors import PluginError
from specpilot_sglang.overlay import Overlay
from specpilot_sglang.plugin.checkpoints import Checkpoint
from specpilot_sglang.plugin.drafter import algorithm_of
from specpilot_sglang.tree.widths import WIDTHS, WidthPolicy

#: Block size that SGLang assumes where the drafter's config names none.
_DEFAULT_BLOCK = 16
#: Drafters whose block pass gives edge scores: marginals, a selector's pairs, or a Markov head's. All of them run under
#: DFLASH's worker, for a DSpark drafter's pass is a DFlash drafter's and its own worker drafts single paths.
_DRAFTERS = ("DFlashDraftModel", "DFlash2DraftModel", "DSparkDraftModel", "Qwen3DSparkModel")
#: Attention backends that verify irregular trees on CUDA: a cascade over the prefix and each node's own ancestors, or a
#: mask. FlashInfer would plan on the host in every step; others take chains only.
TREE_BACKENDS = ("fa3", "triton")


@dataclass(frozen=True)
class TreeSettings:
    """Shape of a draft tree.

    Attributes:
        budget: nodes of a tree, the root included.
        max_depth: tokens from the root to the deepest node, None for the drafter's whole block.
        gated_delta: whether the target has Gated DeltaNet layers, whose nodes' inputs are kept in place of states.
        call_budget: rows of all requests of a verify pass together, None for the device's own bound.
    """

    budget: int
    max_depth: int | None = None
    gated_delta: bool = False
    call_budget: int | None = None

    def policy(self, gpu: str) -> WidthPolicy:
        """Which width a number of requests gets on a device, `cpu` or any other name."""
        return WidthPolicy.of(self.budget, self.call_budget, gpu == "cpu")

    def width(self, gpu: str) -> int:
        """Most rows a request has in a verify pass."""
        return self.policy(gpu).width(1)

    def block(self, trained: int) -> int:
        """Tokens the drafter is asked for at once, the committed one included; never more than can be verified."""
        return min(trained, self.budget, trained if self.max_depth is None else self.max_depth + 1)


def tree_settings(overlay: Overlay | None, target: Checkpoint | None = None) -> TreeSettings | None:
    """Return the tree an overlay asks for, None for a chain; with a target, also what its layers need."""
    if overlay is None or overlay.tree.kind != "best-first" or overlay.tree.budget is None:
        return None
    asked = overlay.tree
    hybrid = target is not None and _has_gated_delta(target)
    return TreeSettings(overlay.tree.budget, asked.max_depth, hybrid, asked.call_budget)


def tree_arguments(overlay: Overlay | None, drafter: Checkpoint | None, gpu: str) -> dict[str, Any]:
    """Return the server arguments of the overlay's tree or bounded chain, by `ServerArgs` field.

    Args:
        overlay: the chosen overlay.
        drafter: the drafter's config, None without speculation.
        gpu: name of the device, `cpu` on the reference platform.

    Raises:
        PluginError: trees were asked for where they cannot be served.
    """
    if overlay is None or (overlay.tree.budget is None and overlay.tree.max_depth is None):
        return {}
    if drafter is None:
        raise PluginError(
            "the overlay's tree needs a drafter", where=overlay.name, fix="give --speculative-draft-model-path"
        )
    settings = tree_settings(overlay)
    if settings is None and algorithm_of(drafter) != "DFLASH":
        raise PluginError(
            f"a chain's tree.budget and tree.max_depth are for DFlash drafters, not for {drafter.architecture}",
            where=drafter.where,
            fix=f"remove them from the overlay {overlay.name}",
        )
    if settings is None:
        bounds = [_block_size(drafter)]
        bounds += [n for n in (overlay.tree.budget, _plus_root(overlay.tree.max_depth)) if n is not None]
        return {"speculative_num_draft_tokens": min(bounds)}
    _check(overlay, drafter, gpu)
    worker = {} if algorithm_of(drafter) == "DFLASH" else {"speculative_algorithm": "DFLASH"}
    return {**worker, "speculative_num_draft_tokens": settings.width(gpu)}


def check_arguments(overlay: Overlay | None, server_args: Any) -> None:
    """Refuse server arguments of the user that a tree cannot be served with.

    Raises:
        PluginError: names the flag and what to change.
    """
    settings = tree_settings(overlay)
    if overlay is None or settings is None:
        return
    cuda = _on_cuda(server_args)
    named = {
        server_args.attention_backend,
        server_args.prefill_attention_backend,
        server_args.decode_attention_backend,
        server_args.speculative_draft_attention_backend,
    }
    refusals = {
        "--speculative-algorithm other than DFLASH": server_args.speculative_algorithm not in (None, "DFLASH"),
        "--speculative-num-draft-tokens": server_args.speculative_num_draft_tokens not in (None, *_widths(settings)),
        "--speculative-dflash-block-size": server_args.speculative_dflash_block_size is not None,
        "--speculative-draft-window-size": server_args.speculative_draft_window_size is not None,
        "--page-size above 1 on the CPU platform": server_args.page_size not in (None, 1) and not cuda,
        f"--attention-backend other than {' or '.join(TREE_BACKENDS)}": cuda and not named <= {None, *TREE_BACKENDS},
        "--enable-two-batch-overlap": server_args.enable_two_batch_overlap,
        "--enable-pdmux": server_args.enable_pdmux,
        "--disaggregation-mode": server_args.disaggregation_mode not in (None, "null"),
        "--enable-dp-attention": server_args.enable_dp_attention,
        "--enable-linear-replayssm-spec": server_args.enable_linear_replayssm_spec,
        "--speculative-use-rejection-sampling": server_args.speculative_use_rejection_sampling,
    }
    for flag, used in refusals.items():
        if used:
            raise PluginError(
                f"{flag} does not go with a best-first tree",
                fix=f"drop it, or set tree.kind: chain in {overlay.name}",
            )


def _check(overlay: Overlay, drafter: Checkpoint, gpu: str) -> None:
    if drafter.architecture not in _DRAFTERS:
        raise PluginError(
            f"best-first trees are served over {' and '.join(_DRAFTERS)}, not over {drafter.architecture}",
            where=drafter.where,
            fix=f"set tree.kind: chain in the overlay {overlay.name}",
        )
    section = drafter.config.get("dflash_config")
    if isinstance(section, dict) and section.get("projector_type"):
        raise PluginError(
            f"best-first trees over a {section['projector_type']} head are not in this version",
            where=f"{drafter.where}:dflash_config.projector_type",
            fix=f"set tree.kind: chain in the overlay {overlay.name}",
        )
    kind = _markov_kind(drafter)
    if kind not in (None, "vanilla"):
        raise PluginError(
            f"best-first trees over a {kind} Markov head are not in this version",
            where=f"{drafter.where}:markov_head_type",
            fix=f"set tree.kind: chain in the overlay {overlay.name}",
        )
    budget = overlay.tree.budget or 0
    if gpu != "cpu" and budget > WIDTHS[-1]:
        raise PluginError(
            f"a tree of {budget} nodes is more than the {WIDTHS[-1]} that are verified on a GPU",
            where=f"{overlay.name}:tree.budget",
            fix=f"set tree.budget to {WIDTHS[-1]} or less",
        )


def _markov_kind(drafter: Checkpoint) -> str | None:
    """Type of a DSpark drafter's Markov head; stock reads it from the config's top."""
    if algorithm_of(drafter) != "DSPARK":
        return None
    return str(drafter.config.get("markov_head_type") or "vanilla").lower()


def _on_cuda(server_args: Any) -> bool:
    from specpilot_sglang.plugin.deployment import gpu_name

    return gpu_name(server_args.device) != "cpu"


def _widths(settings: TreeSettings) -> set[int]:
    """What a user may name as the width: the tree's own, or its tier."""
    return {settings.budget, *(n for n in WIDTHS if n == next((w for w in WIDTHS if w >= settings.budget), 0))}


def _has_gated_delta(target: Checkpoint) -> bool:
    """Whether the config is of the Qwen3-Next and Qwen3.5 kind (Kimi's KDA names its heads otherwise)."""
    return target.number("linear_num_value_heads") is not None and target.number("linear_conv_kernel_dim") is not None


def _block_size(drafter: Checkpoint) -> int:
    section = drafter.config.get("dflash_config")
    dflash: dict[str, Any] = section if isinstance(section, dict) else {}
    return int(dflash.get("block_size") or drafter.config.get("block_size") or _DEFAULT_BLOCK)


def _plus_root(depth: int | None) -> int | None:
    return None if depth is None else depth + 1
