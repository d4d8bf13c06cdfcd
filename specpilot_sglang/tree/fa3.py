"""FlashAttention-3's view of a tree's verify pass, worked out in four launches instead of about thirty.

SGLang runs a tree as a cascade: all nodes over the cached tokens, then each node over its own ancestors, listed in a
page table of single tokens. Stock derives that table from the attention mask by gathers and a sort; the paths of the
trees are known already, and a path's nodes in rising order are what the sort gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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
    from sglang.srt.layers.attention.flashattention_backend import build_trtllm_mha_page_table

    batch = kwargs["bs"]
    prefix = backend.target_verify_metadata_topk_normal[batch]
    suffix = backend.target_verify_metadata_topk_expand[batch]
    prefix.cache_seqlens_int32.copy_(kwargs["seq_lens"][:batch])
    prefix.max_seq_len_k = backend.max_context_len
    torch.cumsum(prefix.cache_seqlens_int32, 0, dtype=torch.int32, out=prefix.cu_seqlens_k[1:])
    build_trtllm_mha_page_table(
        req_to_token=backend.req_to_token,
        req_pool_indices=kwargs["req_pool_indices"][:batch],
        cache_seqlens=prefix.cache_seqlens_int32,
        page_table=prefix.page_table,
        page_size=backend.page_size,
    )
    write_suffixes(trees.paths, trees.prepared_out_cache_loc, suffix.page_table, suffix.cache_seqlens_int32)
    torch.cumsum(suffix.cache_seqlens_int32, 0, dtype=torch.int32, out=suffix.cu_seqlens_k[1:])
    backend.forward_metadata = prefix
    backend.forward_metadata_spec_decode_expand = suffix
