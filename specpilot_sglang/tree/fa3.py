"""FlashAttention-3's view of a tree's verify pass, worked out in two launches instead of about thirty.

SGLang runs a tree as a cascade: all nodes over the cached tokens, then each node over its own ancestors, listed in a
page table of single tokens. Stock derives that table from the attention mask by gathers and a sort; the paths of the
trees are known already, and a path's nodes in rising order are what the sort gives.
"""

from __future__ import annotations

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
