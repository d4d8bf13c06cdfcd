"""Fingerprints of the SGLang 0.5.23 sources that the platform's seams replace (`patching.source.fingerprint`)."""

from __future__ import annotations

KNOWN_SOURCES = {
    "sglang.srt.mem_cache.allocation:assign_req_to_token_pool_func": "598fab3dd718a36d",
    "sglang.srt.mem_cache.allocation:get_last_loc": "707891f89f15f4df",
    "sglang.kernels.ops.attention.table_qk_norm_rope:table_qk_norm_rope_": "d34928e28f798898",
    "sglang.srt.model_executor.model_runner:ModelRunner._extend_forward_kwargs": "b989138b43d25047",
    "sglang.srt.layers.quantization.unquant:UnquantizedLinearMethod.apply": "08b29204cb0b4048",
    "sglang.srt.layers.logits_processor:LogitsProcessor._compute_lm_head": "b75bb13568c01764",
    "sglang.srt.managers.scheduler_components.weight_updater:SchedulerWeightUpdaterManager._observe_weight_load": (
        "ca0288c1cf3b011e"
    ),
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2._greedy_sample_from_vocab_parallel_head": (
        "253974613829cf98"
    ),
    "sglang.kernels.ops.mamba.causal_conv1d_triton:causal_conv1d_fn": "cf9af17110077fd5",
    "sglang.kernels.ops.mamba.causal_conv1d_triton:causal_conv1d_update": "93e14f8a0a752810",
    "sglang.kernels.ops.attention.linear.fused_gdn_gating:fused_gdn_gating": "83ebb18c8ccb5f03",
    "sglang.kernels.ops.attention.fla.chunk:chunk_gated_delta_rule": "d4be94e48e5a9620",
    "sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent:fused_sigmoid_gating_delta_rule_update": (
        "2293e91ad86efb1d"
    ),
    "sglang.kernels.ops.attention.fla.layernorm_gated:layernorm_fn": "255a1bcbb1f5c7e6",
    "sglang.kernels.ops.attention.triton_gdn_fused_proj:fused_qkvzba_split_reshape_cat_contiguous": "52395f5f64cc5c30",
    "sglang.kernels.ops.elementwise.elementwise:fused_sigmoid_mul": "7c2e5baa8550d464",
    "sglang.kernels.ops.mamba.mamba_state_scatter_triton:fused_mamba_state_scatter_with_mask": "6ef0540f8da83460",
    "sglang.kernels.ops.mamba.mamba_state_scatter_triton:fused_conv_window_scatter_with_mask": "a4f9f0cedc666968",
    "sglang.kernels.ops.mamba.mamba_state_scatter_triton:_conv_multi_eligible": "0d37d8a4b4c6c613",
    "sglang.kernels.ops.mamba.mamba_state_scatter_triton:track_mamba_states_if_needed": "cb6739d4db0da058",
    "sglang.kernels.ops.mamba.mamba_state_scatter_triton:track_mamba_states_all_layers": "293f244c13c2b7ad",
}
