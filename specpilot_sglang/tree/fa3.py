"""FlashAttention-3's view of a tree's verify pass, in fewer and shorter launches.

SGLang runs a tree as a cascade: all nodes over the cached tokens, then each node over its own ancestors, listed in a
page table of single tokens. Stock derives that table from the attention mask by gathers and a sort; the paths of the
trees are known already, and a path's nodes in rising order are what the sort gives. A second run of FlashAttention for
a handful of keys a node and the merge of both results cost more than the cached tokens do; for another algorithm, UNO,
SGLang has a kernel that does the two in one. It is right at these shapes on a GPU, but no server has run with it yet,
so it has to be asked for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from specpilot_sglang.kernels.tree_build.verify import write_suffixes


def plan_suffixes(original: Callable[..., None], backend: Any, **kwargs: Any) -> None:
    """In place of `FlashAttentionBackend._apply_cuda_graph_metadata` for replays over trees; stock's own otherwise."""
    trees, mode = kwargs["spec_info"], kwargs["forward_mode"]
    known = (
        mode.is_target_verify()
        # Only a `TreeVerifyInput` has paths.
        and getattr(trees, "paths", None) is not None
        and trees.prepared_out_cache_loc is not None
        and kwargs["encoder_lens"] is None
        and not backend.has_swa
        and not backend.kv_index_translator.reads_are_translated
    )
    if not known:
        original(backend, **kwargs)
        return
    batch = kwargs["bs"]
    prefix = backend.target_verify_metadata_topk_normal[batch]
    suffix = backend.target_verify_metadata_topk_expand[batch]
    prefix.max_seq_len_k = backend.max_context_len
    # As stock fills a chain's: lengths, their sums and the page table in one launch; nodes are not in them.
    backend._set_decode_page_metadata(
        kwargs["plan"], prefix, kwargs["req_pool_indices"][:batch], kwargs["seq_lens"][:batch], 0
    )
    write_suffixes(
        trees.paths, trees.prepared_out_cache_loc, suffix.page_table, suffix.cache_seqlens_int32, suffix.cu_seqlens_k
    )
    backend.forward_metadata = prefix
    backend.forward_metadata_spec_decode_expand = suffix


def fuse_suffixes(
    original: Callable[..., Any],
    backend: Any,
    q: Any,
    k: Any,
    v: Any,
    layer: Any,
    forward_batch: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """In place of `FlashAttentionBackend.forward_extend`: ancestors and merge in one kernel where a pass is over trees.

    Stock asks whether the algorithm is UNO, and whether types, softcap and scales allow its kernel; the first is
    answered for it while the layer runs. Its table is cut to the longest path, since the kernel's work grows with it.
    """
    paths = getattr(forward_batch.spec_info, "paths", None)
    suffix = getattr(backend, "forward_metadata_spec_decode_expand", None)
    if paths is None or suffix is None or not forward_batch.forward_mode.is_target_verify():
        return original(backend, q, k, v, layer, forward_batch, *args, **kwargs)
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    algorithm, short = forward_batch.spec_algorithm, copy.copy(suffix)
    short.page_table = suffix.page_table[:, : paths.width]
    forward_batch.spec_algorithm, backend.forward_metadata_spec_decode_expand = SpeculativeAlgorithm.UNO, short
    try:
        return original(backend, q, k, v, layer, forward_batch, *args, **kwargs)
    finally:
        forward_batch.spec_algorithm, backend.forward_metadata_spec_decode_expand = algorithm, suffix
