"""The allowlist against the pinned SGLang's own ServerArgs: names, types, choices, and what must never be on it."""

import typing

import pytest

from specpilot_sglang.overlay.server_args import ServerArgOverrides, refusal

FIELDS = list(ServerArgOverrides.model_fields)

# Keys that would change answers, fake speed, run foreign code, leak secrets or move the server.
NEVER = [
    "speculative_accept_threshold_single",
    "speculative_accept_threshold_acc",
    "speculative_use_rejection_sampling",
    "speculative_use_block_verification",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_draft_model_quantization",
    "speculative_draft_load_format",
    "speculative_token_map",
    "model_path",
    "tokenizer_path",
    "revision",
    "load_format",
    "json_model_override_args",
    "quantization",
    "quantization_param_path",
    "dtype",
    "kv_cache_dtype",
    "mamba_ssm_dtype",
    "enable_tf32_matmul",
    "enable_int8_mamba_checkpoint",
    "enable_mamba_cache_stochastic_rounding",
    "trust_remote_code",
    "custom_weight_loader",
    "enable_custom_logit_processor",
    "forward_hooks",
    "api_key",
    "admin_api_key",
    "ssl_keyfile_password",
    "host",
    "port",
    "nccl_port",
    "tp_size",
    "dist_init_addr",
    "random_seed",
    "sampling_backend",
    "preferred_sampling_params",
    "grammar_backend",
    "chat_template",
    "context_length",
    "stream_interval",
    "skip_server_warmup",
]


@pytest.fixture(scope="module")
def sglang_hints():
    from sglang.srt.server_args import ServerArgs

    return typing.get_type_hints(ServerArgs, include_extras=True)


def _base(hint):
    """The type without Annotated, None and Literal: Optional[Annotated[int, ...]] -> int."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _base(args[0])
    if origin is typing.Literal:
        return type(args[0])
    if origin in (typing.Union, type(int | None)):
        return _base(next(arg for arg in args if arg is not type(None)))
    return (origin, _base(args[0])) if origin is list else hint


def _literals(hint):
    args = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return set(args)
    return set().union(*(_literals(arg) for arg in args))


@pytest.mark.parametrize("key", FIELDS)
def test_key_is_a_server_argument_of_the_same_type(sglang_hints, key):
    ours = typing.get_type_hints(ServerArgOverrides, include_extras=True)[key]
    assert _base(ours) == _base(sglang_hints[key])


@pytest.mark.parametrize("key", FIELDS)
def test_choices_are_choices_of_sglang(sglang_hints, key):
    from sglang.srt.arg_groups.arg_utils import Arg

    ours = _literals(typing.get_type_hints(ServerArgOverrides)[key])
    theirs = [arg.choices for arg in typing.get_args(sglang_hints[key])[1:] if isinstance(arg, Arg) and arg.choices]
    if theirs:
        assert ours, "SGLang restricts this key, so must we"
        assert ours <= set(theirs[0])


@pytest.mark.parametrize("key", NEVER)
def test_forbidden_key_exists_in_sglang_and_has_a_reason(sglang_hints, key):
    assert key in sglang_hints, "renamed upstream: the refusal guards nothing"
    assert key not in FIELDS
    assert refusal(key) is not None


@pytest.mark.parametrize("key", FIELDS)
def test_allowed_key_has_no_refusal(key):
    assert refusal(key) is None
