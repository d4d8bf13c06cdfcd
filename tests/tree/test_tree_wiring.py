"""The patches of a tree fit SGLang 0.5.23, can be undone, and refuse another source."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from specpilot_sglang import SGLANG_VERSION
from specpilot_sglang.errors import PatchDriftError
from specpilot_sglang.kernels.tree_build.build import build
from specpilot_sglang.kernels.tree_build.launch import LinkedTrees
from specpilot_sglang.kernels.tree_build.scores import MarginalScores
from specpilot_sglang.patching import PatchSet
from specpilot_sglang.plugin import counters
from specpilot_sglang.tree.patches import tree_patches
from specpilot_sglang.tree.settings import TreeSettings


@pytest.fixture(autouse=True)
def clean_counters():
    yield
    counters.reset()


def test_worker_is_replaced_by_a_subclass_and_put_back():
    from sglang.srt.speculative import dflash_worker_v2

    stock = dflash_worker_v2.DFlashWorkerV2
    patches = PatchSet(tree_patches(TreeSettings(16), "steps"), SGLANG_VERSION)
    patches.apply()
    try:
        found = dflash_worker_v2.DFlashWorkerV2
        assert issubclass(found, stock)
        assert found is not stock
        assert found.forward_batch_generation is not stock.forward_batch_generation
        assert found.tree == TreeSettings(16)
        assert {"tree_steps": 0, "tree_nodes_verified": 0}.items() <= counters.snapshot().items()
        # One width and no CUDA graph are all that a load may need: such counters are attested, and prove nothing.
        assert {"tree_graph_replays", "tree_steps_of_16_rows"} <= counters.snapshot().keys()
        assert counters.proofs() == ["tree_nodes_verified", "tree_steps"]
    finally:
        patches.undo()
    assert dflash_worker_v2.DFlashWorkerV2 is stock


@pytest.mark.parametrize("which", range(10))
def test_another_source_is_refused(which):
    patches = tree_patches(TreeSettings(16, gated_delta=True), "steps")
    patches[which] = dataclasses.replace(patches[which], fingerprint="0" * 16)
    with pytest.raises(PatchDriftError, match="fingerprint"):
        PatchSet(patches, SGLANG_VERSION).apply()


def test_verify_input_is_sglangs_irregular_tree():
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    from specpilot_sglang.tree.verify_input import TreeVerifyInput

    logits = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(0))
    trees = build(MarginalScores.from_logits(logits, 4), torch.tensor([5, 6]), 8)
    linked = LinkedTrees(trees, *trees.links())
    made = TreeVerifyInput.of(linked, torch.tensor([10, 3]), 13, 3, torch.arange(16), None, None)
    assert isinstance(made, EagleVerifyInput)
    assert (made.tree_topk, made.max_tree_depth, made.draft_token_num, made.num_tokens_per_req) == (-1, 4, 8, 8)
    assert made.custom_mask.numel() == 8 * (10 + 8) + 8 * (3 + 8)
    assert made.positions.view(2, 8)[:, 0].tolist() == [10, 3]
    assert made.retrieve_index.flatten().tolist() == list(range(16))


class TwoRanks:
    """Gathers what the other rank would have sent."""

    world_size = 2

    def __init__(self):
        self.sent = []

    def all_gather(self, packed, dim):
        self.sent.append(packed)
        return torch.cat(self.sent[-2:], dim) if len(self.sent) > 1 else packed.repeat(2, 1, 1)


def test_candidates_over_two_vocabulary_shards_are_those_of_the_whole():
    from specpilot_sglang.tree.sampler import _over_ranks

    logits = torch.randn(3, 4, 40, generator=torch.Generator().manual_seed(1)).round(decimals=0)
    group = TwoRanks()
    _over_ranks(logits[..., :20], 0, 6, group)
    found = _over_ranks(logits[..., 20:], 20, 6, group)
    whole = logits.log_softmax(-1)
    expected = whole.sort(dim=-1, descending=True, stable=True)
    assert torch.allclose(found.logprobs, expected.values[..., :6], atol=1e-5)
    assert torch.allclose(found.logprobs, whole.gather(-1, found.tokens), atol=1e-5)
