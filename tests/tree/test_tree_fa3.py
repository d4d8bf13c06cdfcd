"""Asked for, a verify pass over trees has its ancestors attended by SGLang's fused kernel, and nothing else has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths
from specpilot_sglang.tree.fa3 import fuse_suffixes

PARENTS = torch.tensor([[-1, 0, 0, 1, 3, 1, 2, 2], [-1, 0, 1, 2, 0, 4, 0, 4]])


def batch_of(spec_info, verify=True):
    mode = SimpleNamespace(is_target_verify=lambda: verify)
    return SimpleNamespace(spec_info=spec_info, forward_mode=mode, spec_algorithm="own")


def seen_by_stock(forward_batch, table, fail=False, by_position=False):
    """What stock's layer finds while it runs, and what stands in the batch and the backend afterwards."""
    suffix = SimpleNamespace(page_table=table, cache_seqlens_int32="lengths")
    backend = SimpleNamespace(forward_metadata_spec_decode_expand=suffix)
    seen = {}

    def stock(self, q, k, v, layer, batch, save_kv_cache=True):
        found = self.forward_metadata_spec_decode_expand
        seen.update(algorithm=batch.spec_algorithm, table=found.page_table, lengths=found.cache_seqlens_int32)
        if fail:
            raise RuntimeError("stock failed")
        return q, save_kv_cache

    try:
        if by_position:
            # So the backend of hybrid models calls its full attention; others give the name.
            result = fuse_suffixes(stock, backend, "q", "k", "v", "layer", forward_batch, False)
        else:
            result = fuse_suffixes(stock, backend, "q", "k", "v", "layer", forward_batch, save_kv_cache=False)
        assert result == ("q", False)
    finally:
        assert forward_batch.spec_algorithm == "own"
        assert backend.forward_metadata_spec_decode_expand is suffix
        assert suffix.page_table is table
    return seen


@pytest.mark.parametrize("by_position", [False, True])
def test_trees_are_attended_by_the_fused_kernel_over_their_longest_path(by_position):
    table = torch.arange(16 * 8).view(16, 8)
    trees = SimpleNamespace(paths=TreePaths.of(PARENTS, 4))
    seen = seen_by_stock(batch_of(trees), table, by_position=by_position)
    assert seen["algorithm"].is_uno()
    assert seen["lengths"] == "lengths"
    assert seen["table"].shape == (16, 4)
    # A view: graphs read what later steps write there.
    assert seen["table"].data_ptr() == table.data_ptr()


@pytest.mark.parametrize(
    "forward_batch", [batch_of(None), batch_of(SimpleNamespace()), batch_of(SimpleNamespace(paths="x"), verify=False)]
)
def test_other_passes_are_stocks_own(forward_batch):
    table = torch.zeros(16, 8)
    seen = seen_by_stock(forward_batch, table)
    assert seen["algorithm"] == "own"
    assert seen["table"] is table


def test_a_failing_layer_leaves_the_batch_as_it_was():
    with pytest.raises(RuntimeError, match="stock failed"):
        seen_by_stock(batch_of(SimpleNamespace(paths=TreePaths.of(PARENTS, 4))), torch.zeros(16, 8), fail=True)
