"""Tree kernels compile for Hopper with Qwen3.5-27B's shapes: the interpreter takes code that the compiler refuses."""

from __future__ import annotations

import pytest

from specpilot_sglang.kernels.gated_delta.tree_block_kernel import block_verify_kernel
from specpilot_sglang.kernels.gated_delta.tree_conv_kernels import conv_commit_kernel, conv_verify_kernel
from specpilot_sglang.kernels.gated_delta.tree_kernels import commit_kernel, verify_kernel
from specpilot_sglang.kernels.gated_delta.tree_solve_kernel import solve_kernel
from specpilot_sglang.kernels.tree_build.accept_kernels import accept_kernel, move_kernel
from specpilot_sglang.kernels.tree_build.heap_kernel import best_first_kernel
from specpilot_sglang.kernels.tree_build.verify_kernels import inputs_kernel, open_kernel, suffix_kernel

HEADS = {"KEY_HEADS": 16, "VALUE_HEADS": 48, "KEY_DIM": 128, "VALUE_DIM": 128, "TILE": 32, "WIDTH": 8, "EPS": 1e-6}
CONV = {"TAPS": 4, "BLOCK": 256, "WIDTH": 8}
BUILD = {"NODES": 32, "WIDTH": 31, "SLOTS": 32}
NODES = {"KEY_HEADS": 16, "VALUE_HEADS": 48, "KEY_DIM": 128, "NODES": 32, "SLOTS": 32, "PRECISION": "tf32x3"}
NODES |= {"PARTS": True, "OVERLAP": True}
SOLVE = NODES | {"CHUNK": 64, "BANDS": 2, "EPS": 1e-6, "KEEP": True}
BLOCK = NODES | {"VALUE_DIM": 128, "TILE": 64, "CHUNK": 32}
READING = {"ancestors": "*i64", "reading": "*bf16", "scales": "*fp32"}
INPUTS = {"NODES": 32, "SLOTS": 32, "WIDTH": 8}
NO_PATHS = dict.fromkeys(("nodes_of_ptr", "levels_ptr", "owners_ptr", "ancestors_ptr"))
BF16 = dict.fromkeys(("q", "k", "v", "a", "b", "out", "x", "weight", "kept", "kept_a", "kept_b"), "*bf16")
INT64 = dict.fromkeys(
    ("candidates", "roots", "budgets", "tokens", "parents", "depths", "sizes", "child", "sibling", "ancestors"), "*i64"
)
INT64 |= dict.fromkeys(("lens", "positions", "chosen", "index", "front", "emitted", "bonus", "new_lens"), "*i64")
INT64 |= {
    "mask": "*i8",
    "accepted": "*i32",
    **dict.fromkeys(("rows", "places", "locs", "ids", "block", "window", "pools"), "*i64"),
    "data": "*u64",
    "stride": "*i64",
    "slots": "*i64",
}
FP32 = dict.fromkeys(("a_log", "dt_bias", "logprobs", "scores", "state"), "*fp32")
CASES = [
    (verify_kernel, HEADS, BF16 | FP32),
    (verify_kernel, HEADS, BF16 | FP32 | {"state": "*bf16"}),
    (commit_kernel, HEADS | {"TRACK": True}, BF16 | FP32),
    (commit_kernel, HEADS | {"TRACK": False, "track_slots_ptr": None, "track_steps_ptr": None}, BF16 | FP32),
    (solve_kernel, SOLVE, BF16 | FP32 | READING),
    (solve_kernel, SOLVE | {"NODES": 64, "SLOTS": 64, "BANDS": 4}, BF16 | FP32 | READING),
    (block_verify_kernel, BLOCK, BF16 | FP32 | READING),
    (block_verify_kernel, BLOCK | {"NODES": 64, "SLOTS": 64}, BF16 | FP32 | READING),
    (conv_verify_kernel, CONV | {"GROUP": 8} | {"BIAS": False, "SILU": True, "KEEP": True, "bias_ptr": None}, BF16),
    (conv_commit_kernel, CONV | {"TRACK": True}, BF16 | {"state": "*bf16"}),
    (conv_commit_kernel, CONV | {"TRACK": False, "track_slots_ptr": None, "track_steps_ptr": None}, BF16),
    (best_first_kernel, BUILD | {"BUDGETS": True, "ROWS": 16, "WIDTH": 16}, INT64 | FP32),
    (best_first_kernel, BUILD | {"BUDGETS": False, "ROWS": 1, "budgets_ptr": None, "order_ptr": None}, INT64 | FP32),
    (inputs_kernel, INPUTS | {"MASK": True, "PATHS": True, "OWNERS": False}, INT64),
    (inputs_kernel, INPUTS | {"MASK": True, "PATHS": False, "OWNERS": False} | NO_PATHS, INT64),
    (suffix_kernel, {"NODES": 32, "SLOTS": 32, "WIDTH": 8}, INT64),
    (open_kernel, {"NODES": 32, "SLOTS": 32, "BLOCK": 8, "MASK_TOKEN": 7}, INT64),
    (accept_kernel, {"NODES": 32, "SLOTS": 32, "WIDTH": 8, "LENGTH": 0}, INT64),
    (accept_kernel, {"NODES": 32, "SLOTS": 32, "WIDTH": 8, "LENGTH": 4}, INT64),
    (move_kernel, {"NODES": 32, "WIDTH": 8, "TILE": 1024}, INT64 | {"lens": "*i32"}),
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
