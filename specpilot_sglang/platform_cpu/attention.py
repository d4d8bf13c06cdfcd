"""SGLang attention backend `specpilot_sdpa`: decode, prefill, verify (linear or tree) and draft blocks on CPU."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from specpilot_sglang.platform_cpu.attention_math import attend
from specpilot_sglang.platform_cpu.attention_plan import BlockPlan, block_plans
from specpilot_sglang.platform_cpu.fused import begin_forward_pass
from specpilot_sglang.platform_cpu.kv_pool import CpuMHATokenToKVPool

BACKEND_NAME = "specpilot_sdpa"


class SdpaAttnBackend(AttentionBackend):
    """Attention for every forward mode of dense models over one flat KV pool."""

    # Lengths are read from CPU tensors anyway; stock would copy them once more.
    needs_cpu_seq_lens = False

    def __init__(self, runner: Any) -> None:
        super().__init__()
        if runner.model_config.is_encoder_decoder:
            raise NotImplementedError("specpilot_sdpa has no cross attention: encoder-decoder models are not served")
        # Hybrid models wrap this backend and read both pools off it.
        self.req_to_token_pool = runner.req_to_token_pool
        self.req_to_token = runner.req_to_token_pool.req_to_token
        self.token_to_kv_pool = runner.token_to_kv_pool
        self._plain_pool = type(self.token_to_kv_pool) is CpuMHATokenToKVPool
        self._plans: list[BlockPlan] = []
        self._locations: torch.Tensor | None = None

    def support_triton(self) -> bool:
        """No Triton kernel may be launched for this backend."""
        return False

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Gather slots and lengths once; every layer of the pass reuses them."""
        begin_forward_pass()
        self._locations = forward_batch.out_cache_loc
        mode = forward_batch.forward_mode
        if mode.is_idle():
            self._plans = []
            return
        lens = forward_batch.seq_lens.long()
        rows = forward_batch.req_pool_indices.long()
        custom = positions = None
        if mode.is_decode():
            widths = [1] * lens.shape[0]
        elif mode.is_target_verify():
            width = forward_batch.spec_info.draft_token_num
            widths = [width] * lens.shape[0]
            lens = lens + width
            custom = getattr(forward_batch.spec_info, "custom_mask", None)
            positions = forward_batch.positions if custom is not None else None
        else:
            widths = forward_batch.extend_seq_lens.tolist()
        self._plans = block_plans(self.req_to_token, rows, lens, widths, custom, positions)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Write this pass's K and V, then attend. q [rows, heads * dim]; returns [rows, heads * v dim]."""
        if kwargs or layer.logit_cap or layer.is_cross_attention:
            raise NotImplementedError(
                f"specpilot_sdpa: layer {layer.layer_id} asks for {sorted(kwargs) or 'logit cap or cross attention'}"
            )
        if not self._plans:
            return q.new_empty((q.shape[0], layer.tp_q_head_num * layer.v_head_dim))
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None:
            self._write(layer, k, v)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        causal = layer.attn_type != AttentionType.ENCODER_ONLY
        if len(self._plans) == 1:
            plan = self._plans[0]
            block = q if q.shape[0] == plan.rows else q[: plan.rows]
            out = attend(
                block, keys, values, plan, scale=layer.scaling, causal=causal, window=layer.sliding_window_size
            )
            if out.shape[0] == q.shape[0]:
                return out
        return self._attend_each(q, keys, values, layer, causal)

    # The wrapper of hybrid models calls these by name.
    forward_decode = forward
    forward_extend = forward

    def _write(self, layer: Any, k: torch.Tensor, v: torch.Tensor | None) -> None:
        pool = self.token_to_kv_pool
        if self._plain_pool and k.dtype == pool.dtype == pool.store_dtype:
            pool._store_kv_layer(layer.layer_id - pool.start_layer, self._locations, k, v)
        else:
            pool.set_kv_buffer(layer, KVWriteLoc(self._locations), k, v)

    def _attend_each(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: Any, causal: bool
    ) -> torch.Tensor:
        # Rows past the plans are padding (tensor-parallel alignment): their output is never read.
        out = q.new_zeros((q.shape[0], layer.tp_q_head_num * layer.v_head_dim))
        for plan in self._plans:
            block = q[plan.start : plan.start + plan.rows]
            out[plan.start : plan.start + plan.rows] = attend(
                block, keys, values, plan, scale=layer.scaling, causal=causal, window=layer.sliding_window_size
            )
        return out

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Padded requests count one key."""
        return 1
