"""Everything a verify pass of one width has of its own: buffers, attention backend and captured graphs."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths
from specpilot_sglang.kernels.tree_build.launch import LinkedTrees
from specpilot_sglang.tree.buffers import Room, buffers_of, captured_sizes, make_buffers, most_requests
from specpilot_sglang.tree.settings import TreeSettings
from specpilot_sglang.tree.widths import WidthPolicy


class Views(NamedTuple):
    """The first rows of a tier's buffers.

    Attributes:
        trees: where the drafter leaves this many trees.
        paths: where their paths go, None where nothing reads them.
        index: int64 [requests, width], rows in order.
    """

    trees: LinkedTrees
    paths: TreePaths | None
    index: torch.Tensor


@dataclass
class Tier:
    """Verify passes of one width.

    Attributes:
        width: rows a request.
        depth: tokens from a tree's root to its deepest node.
        budget: nodes a tree; the rows beyond are padding.
        room: paths and row numbers that this tier's graphs read.
        trees: where the drafter leaves its trees.
        backend, graphs: the target's attention backend and graph runner of this width; None on a CPU, where no backend
            knows a width beforehand.
    """

    width: int
    depth: int
    budget: int
    room: Room
    trees: LinkedTrees
    backend: Any = None
    graphs: Any = None
    _views: dict[int, Views] = field(default_factory=dict)

    def views(self, requests: int) -> Views:
        """The part of this tier's buffers that a batch uses; the same object for every batch of this size."""
        found = self._views.get(requests)
        if found is None:
            paths = self.room.paths
            found = Views(
                self.trees.first(requests), None if paths is None else paths.first(requests), self.room.index[:requests]
            )
            self._views[requests] = found
        return found

    def use(self, runner: Any) -> None:
        """Make the target's next pass one of this width."""
        if self.backend is not None and runner.attn_backend is not self.backend:
            runner.attn_backend, runner.decode_cuda_graph_runner = self.backend, self.graphs


class Tiers:
    """The widths that can occur, and which one a number of requests gets.

    A batch is padded up to a captured size, and its width is that size's: then drafter and target, whose graphs are
    captured for the same sizes, always agree, and each size is captured with one width only.

    Attributes:
        policy: width by number of requests.
        sizes: batch sizes that graphs are captured for, rising.
    """

    def __init__(self, runner: Any, tree: TreeSettings, block: int) -> None:
        """Allocate the buffers of every width, before any graph is captured.

        Args:
            runner: SGLang's model runner of the target, with its pools.
            tree: the overlay's tree.
            block: tokens of the drafter's block, the committed one included.
        """
        cpu = str(runner.device).startswith("cpu")
        self.policy = tree.policy("cpu" if cpu else str(runner.device))
        self.sizes = captured_sizes(runner, self.policy.widths[-1])
        most = most_requests(runner)
        rooms = {n: most_of(self.policy, self.sizes, n, most) for n in self.policy.widths}
        # The widest is what the server was started with, whether a captured size has it or not.
        rooms = {n: max(count, 1) for n, count in rooms.items() if count or n == self.policy.width(1)}
        depths = {n: min(block, n) - 1 for n in rooms}
        make_buffers(runner, self, {n: (count, depths[n] + 1) for n, count in rooms.items()}, tree.gated_delta)
        self._by_width = {
            n: Tier(
                n, depths[n], min(n, tree.budget), buffers_of(runner).rooms[n],
                LinkedTrees.empty(count, n, runner.device),
            )
            for n, count in rooms.items()
        }  # fmt: skip

    def of(self, requests: int) -> Tier:
        """The tier of a batch."""
        return self._by_width[self.policy.width(padded(self.sizes, requests))]

    def all(self) -> list[Tier]:
        """Every width that can occur."""
        return list(self._by_width.values())

    def capture(self, runner: Any) -> None:
        """Give each width an attention backend, and graphs for the sizes that have it; the widest has its own."""
        first = self._by_width[self.policy.width(1)]
        if str(runner.device).startswith("cpu"):
            return
        first.backend, first.graphs = runner.attn_backend, runner.decode_cuda_graph_runner
        for tier in self.all():
            if tier is not first:
                _capture(runner, tier, first.graphs)


def padded(sizes: tuple[int, ...], requests: int) -> int:
    """The captured size that a batch is padded up to; beyond the largest one it stays as it is."""
    place = bisect_left(sizes, requests)
    return sizes[place] if place < len(sizes) else requests


def most_of(policy: WidthPolicy, sizes: tuple[int, ...], width: int, most: int) -> int:
    """Most requests a pass of `width` rows a request has, padding included; 0 where the width never occurs."""
    found = (padded(sizes, n) for n in range(1, most + 1))
    return max((n for n in found if policy.width(n) == width), default=0)


def sizes_of_width(original: Any, runner: Any, width: int = 1, **kwargs: Any) -> tuple[list[int], list[int]]:
    """In place of SGLang's `get_batch_sizes_to_capture`: of a target that verifies trees, the sizes of this width."""
    sizes, compiled = original(runner, width, **kwargs)
    tiers = _tiers_of(runner)
    kept = [n for n in sizes if tiers is not None and tiers.policy.width(n) == width]
    return (kept, [n for n in compiled if n in kept]) if kept else (sizes, compiled)


def rows_of_all_widths(original: Any, runner: Any) -> int:
    """In place of `ModelRunner.max_decode_logits_rows`, which asks for one width: graphs of all share one buffer."""
    rows: int = original(runner)
    tiers = _tiers_of(runner)
    return rows if tiers is None else max(rows, *(n * tiers.policy.width(n) for n in tiers.sizes), 0)


def _tiers_of(runner: Any) -> Tiers | None:
    return None if runner.is_draft_worker else getattr(buffers_of(runner, None), "tiers", None)


def _capture(runner: Any, tier: Tier, like: Any) -> None:
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
    from sglang.srt.runtime_context import get_spec

    workspace = runner.init_new_workspace
    with get_spec().override(speculative_num_draft_tokens=tier.width):
        try:
            tier.backend = runner._get_attention_backend(init_new_workspace=True)
        finally:
            runner.init_new_workspace = workspace
        runner.kv_index_translator.bind_and_verify_backends([tier.backend])
        tier.graphs = like
        if isinstance(like, DecodeCudaGraphRunner):
            tier.graphs = type(like)(runner, attn_backend=tier.backend, speculative_num_draft_tokens=tier.width)
