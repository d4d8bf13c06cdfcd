"""Tree kernels compile for Hopper with Qwen3.5-27B's shapes: the interpreter takes code that the compiler refuses."""

from __future__ import annotations

import pytest

from specpilot_sglang.kernels.gated_delta.tree_conv_kernels import conv_commit_kernel, conv_verify_kernel
from specpilot_sglang.kernels.gated_delta.tree_kernels import commit_kernel, verify_kernel
from specpilot_sglang.kernels.tree_build.heap_kernel import best_first_kernel

HEADS = {"KEY_HEADS": 16, "VALUE_HEADS": 48, "KEY_DIM": 128, "VALUE_DIM": 128, "TILE": 32, "WIDTH": 8, "EPS": 1e-6}
CONV = {"TAPS": 4, "BLOCK": 256, "WIDTH": 8}
BUILD = {"BUDGET": 32, "WIDTH": 31, "SLOTS": 32}
BF16 = dict.fromkeys(("q", "k", "v", "a", "b", "out", "x", "weight"), "*bf16")
INT64 = dict.fromkeys(
    ("candidates", "roots", "budgets", "tokens", "parents", "depths", "sizes", "child", "sibling"), "*i64"
)
FP32 = dict.fromkeys(("a_log", "dt_bias", "logprobs", "scores", "state"), "*fp32")
CASES = [
    (verify_kernel, HEADS, BF16 | FP32),
    (verify_kernel, HEADS, BF16 | FP32 | {"state": "*bf16"}),
    (commit_kernel, HEADS | {"TRACK": True}, BF16 | FP32),
    (commit_kernel, HEADS | {"TRACK": False, "track_slots_ptr": None, "track_steps_ptr": None}, BF16 | FP32),
    (conv_verify_kernel, CONV | {"BIAS": False, "SILU": True, "bias_ptr": None}, BF16 | {"state": "*bf16"}),
    (conv_commit_kernel, CONV | {"TRACK": True}, BF16 | {"state": "*bf16"}),
    (conv_commit_kernel, CONV | {"TRACK": False, "track_slots_ptr": None, "track_steps_ptr": None}, BF16),
    (best_first_kernel, BUILD | {"BUDGETS": True}, INT64 | FP32),
    (best_first_kernel, BUILD | {"BUDGETS": False, "budgets_ptr": None}, INT64 | FP32),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_kernel_compiles_for_hopper(case):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, constants, pointers = CASES[case]
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        else:
            signature[name] = pointers.get(name[:-4], "*i32") if name.endswith("_ptr") else "i32"
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    compiled = triton.compile(ASTSource(kernel, signature, places), target=GPUTarget("cuda", 90, 32))
    assert ".entry" in compiled.asm["ptx"]
