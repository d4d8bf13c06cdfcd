"""The SGLang server arguments an overlay may set: performance only, never answers, never what the clock sees."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Sizes = Annotated[list[Positive], Field(min_length=1, max_length=128)]
# Dense attention of full precision only: sparse and quantising backends of ServerArgs are left out.
Attention = Literal["triton", "torch_native", "flex_attention", "fa3", "fa4", "flashinfer", "flashmla", "trtllm_mha"]
LinearAttention = Literal["triton", "cutedsl", "flashinfer", "helion"]


class ServerArgOverrides(BaseModel):
    """Allowlisted fields of `sglang.srt.server_args.ServerArgs` 0.5.23; unset keeps what the user or SGLang chose."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    # Speculation: the drafter proposes, the target decides, so these move speed and never tokens.
    speculative_num_draft_tokens: Annotated[int, Field(ge=2, le=128)] | None = None
    speculative_draft_window_size: Positive | None = None
    speculative_draft_attention_backend: Attention | None = None
    speculative_draft_kv_cache_dtype: Literal["auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] | None = None
    # Kernels of equal arithmetic.
    attention_backend: Attention | None = None
    prefill_attention_backend: Attention | None = None
    decode_attention_backend: Attention | None = None
    linear_attn_backend: LinearAttention | None = None
    linear_attn_decode_backend: LinearAttention | None = None
    linear_attn_prefill_backend: LinearAttention | None = None
    linear_attn_verify_backend: LinearAttention | None = None
    triton_attention_num_kv_splits: Positive | None = None
    disable_custom_all_reduce: bool | None = None
    disable_flashinfer_autotune: bool | None = None
    # CUDA graphs.
    cuda_graph_max_bs_decode: Positive | None = None
    cuda_graph_max_bs_prefill: Positive | None = None
    cuda_graph_bs_decode: Sizes | None = None
    disable_prefill_cuda_graph: bool | None = None
    disable_cuda_graph_padding: bool | None = None
    # Scheduling.
    max_running_requests: Positive | None = None
    chunked_prefill_size: Annotated[int, Field(ge=-1)] | None = None
    max_prefill_tokens: Positive | None = None
    prefill_max_requests: Positive | None = None
    prefill_decode_interval: NotNegative | None = None
    prefill_decode_interval_min_bs: NotNegative | None = None
    min_free_slots_delay: Positive | None = None
    num_continuous_decode_steps: Positive | None = None
    scheduler_recv_interval: Positive | None = None
    schedule_conservativeness: Annotated[float, Field(ge=0, le=10)] | None = None
    schedule_policy: Literal["fcfs", "lpm"] | None = None
    enable_mixed_chunk: bool | None = None
    disable_overlap_schedule: bool | None = None
    # Memory.
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None = None
    page_size: Positive | None = None
    disable_radix_cache: bool | None = None
    max_mamba_cache_size: Positive | None = None
    mamba_full_memory_ratio: Annotated[float, Field(gt=0)] | None = None
    mamba_radix_cache_strategy: Literal["auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return only the arguments the overlay sets, by `ServerArgs` field name."""
        return self.model_dump(exclude_none=True)


#: Why a key is refused, first match wins: (pattern of the key, reason, fix).
_REFUSED: tuple[tuple[str, str, str], ...] = (
    (r"speculative_accept_threshold_.*", "it lets wrong draft tokens through, so answers change", "remove it"),
    (r"speculative_use_(rejection_sampling|block_verification)", "it changes how tokens are sampled", "remove it"),
    (
        r"speculative_dflash_block_size",
        "SGLang treats it as another spelling",
        "set server_args.speculative_num_draft_tokens",
    ),
    (
        r"speculative_(algorithm|draft_model.*|num_steps|eagle_topk|token_map|draft_load_format|ngram_.*)",
        "the overlay does not choose drafter or algorithm",
        "give it on the server's command line",
    ),
    (
        r"quantization.*|modelopt_.*|quantize_.*|torchao_.*|load_format",
        "weights.format chooses how weights are stored",
        "set weights.format: w12 or bf16",
    ),
    (
        r"(model|tokenizer|download|served_model).*|revision|json_model_override_args|weight_.*",
        "the overlay does not choose the model",
        "give it on the server's command line",
    ),
    (
        r"(kv_cache|mamba_ssm)_?dtype|dtype|enable_int8_.*|enable_fp32_.*|enable_tf32_.*|.*stochastic_rounding",
        "it changes the target's arithmetic, so answers change",
        "remove it",
    ),
    (
        r"trust_remote_code|custom_.*|enable_custom_.*|forward_hooks|.*_plugin.*|hooks?_.*",
        "it runs code from outside the overlay",
        "declare Python under patches",
    ),
    (r".*(api_key|password|ssl_|secret|token_auth).*", "an overlay carries no secrets", "remove it"),
    (
        r"host|(nccl_|grpc_|.*_)?port|dist_init_addr|.*endpoint.*|nnodes|node_rank|(tp|dp|pp|ep)_size|base_gpu_id|device",
        "it belongs to the machine, not to the deployment's overlay",
        "give it on the server's command line",
    ),
    (
        r"stream_interval|.*streaming.*|skip_server_warmup|warmups|decode_log_interval|enable_metrics.*|log_.*",
        "it changes what is measured, not how fast the server is",
        "give it on the server's command line",
    ),
    (
        r"sampling_.*|preferred_sampling_params|random_seed|grammar_backend|chat_template|.*_parser|context_length|"
        r"enable_deterministic_inference|allow_auto_truncate",
        "it changes answers",
        "give it on the server's command line",
    ),
)


def refusal(key: str) -> tuple[str, str] | None:
    """Return (reason, fix) when `key` is a known server argument that overlays may not set."""
    for pattern, reason, fix in _REFUSED:
        if re.fullmatch(pattern, key):
            return reason, fix
    return None
