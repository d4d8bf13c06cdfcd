"""KV pool of the CPU platform: stock bookkeeping, torch row copies in place of Triton kernels."""

from __future__ import annotations

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool


class CpuMHATokenToKVPool(MHATokenToKVPool):
    """Stock multi-head KV pool whose writes and moves are plain torch."""

    def _init_kv_copy_and_warmup(self) -> None:
        # Stock sizes tiles for a Triton copy kernel and launches it once.
        self._kv_copy_config = None

    def _store_kv_layer(self, layer_idx: int, loc: torch.Tensor, cache_k: torch.Tensor, cache_v: torch.Tensor) -> None:
        self.k_buffer[layer_idx].index_copy_(0, loc, cache_k)
        self.v_buffer[layer_idx].index_copy_(0, loc, cache_v)

    def _move_kv_cache_impl(self, tgt_loc: torch.Tensor, src_loc: torch.Tensor) -> None:
        # index_select copies before index_copy_ writes, so overlapping moves read old rows.
        for buffer in (*self.k_buffer, *self.v_buffer):
            buffer.index_copy_(0, tgt_loc, buffer.index_select(0, src_loc))
