"""An overlay's tree becomes server arguments, or one clear refusal."""

from __future__ import annotations

import types

import pytest

from specpilot_sglang.errors import PluginError
from specpilot_sglang.overlay import load_overlay
from specpilot_sglang.overlay.schema import Overlay, Tree
from specpilot_sglang.plugin.checkpoints import Checkpoint
from specpilot_sglang.tree.settings import TreeSettings, check_arguments, tree_arguments, tree_settings
from specpilot_sglang.tree.tiers import most_of, padded, rows_of_all_widths, sizes_of_width
from specpilot_sglang.tree.widths import WidthPolicy

WIDTH = "speculative_num_draft_tokens"


def drafter(architecture="DFlashDraftModel", block=8, head=None, **section):
    config = {"block_size": block, "dflash_config": {"mask_token_id": 1, **section}, "markov_head_type": head}
    return Checkpoint(architecture, config, config, "d/config.json")


def overlay(**tree):
    return Overlay(name="x", tree=Tree(**tree))


def user(**changed):
    stock = {
        "speculative_algorithm": None,
        WIDTH: None,
        "speculative_dflash_block_size": None,
        "speculative_draft_window_size": None,
        "page_size": None,
        "enable_dp_attention": False,
        "enable_linear_replayssm_spec": False,
        "speculative_use_rejection_sampling": False,
        "device": "cpu",
        "attention_backend": None,
        "prefill_attention_backend": None,
        "decode_attention_backend": None,
        "speculative_draft_attention_backend": None,
        "enable_two_batch_overlap": False,
        "enable_pdmux": False,
        "disaggregation_mode": "null",
    }
    return types.SimpleNamespace(**(stock | changed))


def test_budget_is_the_width_of_the_verify_pass():
    assert tree_arguments(overlay(kind="best-first", budget=32), drafter(), "cpu") == {WIDTH: 32}
    assert tree_settings(overlay(kind="best-first", budget=32, max_depth=5)) == TreeSettings(32, 5)


@pytest.mark.parametrize(("budget", "rows"), [(2, 8), (8, 8), (9, 16), (32, 32), (33, 64), (64, 64)])
def test_on_a_gpu_a_tree_is_padded_up_to_a_width_tier(budget, rows):
    assert tree_arguments(overlay(kind="best-first", budget=budget), drafter(), "NVIDIA H200") == {WIDTH: rows}


@pytest.mark.parametrize(
    ("asked", "gpu", "rows"),
    [
        ({"budget": 32}, "NVIDIA H200", {1: 32, 2: 16, 3: 16, 4: 16, 5: 8, 8: 8, 64: 8}),
        ({"budget": 64}, "NVIDIA H200", {1: 64, 2: 16, 4: 16, 5: 8}),
        ({"budget": 64, "call_budget": 192}, "NVIDIA H200", {1: 64, 3: 64, 4: 32, 8: 32, 9: 16, 24: 16, 25: 8}),
        ({"budget": 4}, "NVIDIA H200", {1: 8, 64: 8}),
        ({"budget": 32}, "cpu", {1: 32, 64: 32}),
        ({"budget": 20, "call_budget": 40}, "cpu", {1: 20, 3: 20, 4: 16, 5: 16, 6: 8, 64: 8}),
        ({"budget": 6, "call_budget": 0}, "cpu", {1: 6, 64: 6}),
        ({"budget": 32, "call_budget": 0}, "NVIDIA H200", {1: 32, 2: 8, 64: 8}),
    ],
)
def test_more_requests_have_smaller_trees_and_a_pass_stays_in_its_budget(asked, gpu, rows):
    policy = tree_settings(overlay(kind="best-first", **asked)).policy(gpu)
    assert {n: policy.width(n) for n in rows} == rows
    assert policy.most_rows(64) == max(n * policy.width(n) for n in range(1, 65))
    least, limit = policy.widths[0], policy.call_budget
    assert all(limit is None or n * (policy.width(n) - least) <= limit for n in range(2, 65))
    assert tree_arguments(overlay(kind="best-first", **asked), drafter(), gpu) == {WIDTH: policy.widths[-1]}


def test_a_batch_has_the_width_of_the_captured_size_it_is_padded_to():
    policy, sizes = WidthPolicy.of(32, None, cpu=False), (1, 2, 4, 8, 16)
    assert [padded(sizes, n) for n in (1, 3, 4, 5, 16, 17)] == [1, 4, 4, 8, 16, 17]
    assert [most_of(policy, sizes, n, 20) for n in (8, 16, 32)] == [20, 4, 1]


def test_graphs_are_captured_for_widths_and_sizes_that_can_occur_only():
    policy = WidthPolicy.of(32, None, cpu=False)
    target = types.SimpleNamespace(is_draft_worker=False)

    def stock(runner, width, **kwargs):
        return [1, 2, 4, 8, 16], [1, 8]

    assert sizes_of_width(stock, target, 32) == ([1, 2, 4, 8, 16], [1, 8])
    target._specpilot_tree_buffers = types.SimpleNamespace(tiers=types.SimpleNamespace(policy=policy, sizes=()))
    found = {width: sizes_of_width(stock, target, width) for width in policy.widths}
    assert found == {8: ([8, 16], [8]), 16: ([2, 4], []), 32: ([1], [1])}
    assert rows_of_all_widths(lambda runner: 64, target) == 64
    target._specpilot_tree_buffers.tiers.sizes = (1, 2, 4, 8, 16)
    assert rows_of_all_widths(lambda runner: 64, target) == 128
    target.is_draft_worker = True
    assert sizes_of_width(stock, target, 8) == ([1, 2, 4, 8, 16], [1, 8])


def test_selector_drafters_have_trees_too():
    made = tree_arguments(overlay(kind="best-first", budget=20), drafter("DFlash2DraftModel"), "cpu")
    assert made == {WIDTH: 20}


def test_dspark_drafters_have_trees_under_dflashs_worker_and_no_bounded_chains():
    made = tree_arguments(overlay(kind="best-first", budget=20), drafter("Qwen3DSparkModel"), "cpu")
    assert made == {"speculative_algorithm": "DFLASH", WIDTH: 20}
    with pytest.raises(PluginError, match="for DFlash drafters"):
        tree_arguments(overlay(kind="chain", budget=20), drafter("Qwen3DSparkModel"), "cpu")


def on_gpu(monkeypatch):
    monkeypatch.setattr("specpilot_sglang.plugin.deployment.gpu_name", lambda device: "NVIDIA H200")


@pytest.mark.parametrize(
    "flag", ["attention_backend", "decode_attention_backend", "speculative_draft_attention_backend"]
)
def test_attention_backends_without_irregular_trees_are_refused_on_a_gpu(flag, monkeypatch):
    tree = overlay(kind="best-first", budget=16)
    check_arguments(tree, user(**{flag: "flashinfer"}))
    on_gpu(monkeypatch)
    for fit in ("fa3", "triton"):
        check_arguments(tree, user(**{flag: fit, "page_size": 16}))
    with pytest.raises(PluginError, match="fa3 or triton"):
        check_arguments(tree, user(**{flag: "flashinfer"}))


@pytest.mark.parametrize(
    ("tree", "length"),
    [({"budget": 32}, 8), ({"budget": 4}, 4), ({"max_depth": 5}, 6), ({"budget": 7, "max_depth": 3}, 4)],
)
def test_the_same_bounds_on_a_chain_shorten_it(tree, length):
    assert tree_arguments(overlay(kind="chain", **tree), drafter(), "cpu") == {WIDTH: length}
    assert tree_settings(overlay(kind="chain", **tree)) is None


def test_without_bounds_nothing_is_set():
    assert tree_arguments(overlay(kind="chain"), drafter(), "cpu") == {}
    assert tree_arguments(None, drafter(), "cpu") == {}


@pytest.mark.parametrize(("settings", "block"), [((32, None), 8), ((32, 3), 4), ((5, None), 5), ((32, 30), 8)])
def test_drafter_is_asked_for_no_more_than_can_be_verified(settings, block):
    assert TreeSettings(*settings).block(8) == block


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"drafter": None}, "needs a drafter"),
        ({"drafter": drafter("MiniMaxDFlash2DraftModel")}, "not over MiniMaxDFlash2DraftModel"),
        ({"drafter": drafter("DSparkDraftModel", head="gated")}, "gated Markov head"),
        ({"drafter": drafter(projector_type="domino")}, "domino"),
    ],
)
def test_what_this_version_cannot_serve_is_refused(change, words):
    given = {"drafter": drafter(), "gpu": "cpu"} | change
    with pytest.raises(PluginError, match=words):
        tree_arguments(overlay(kind="best-first", budget=16), given["drafter"], given["gpu"])
    with pytest.raises(PluginError, match="more than the 64"):
        tree_arguments(overlay(kind="best-first", budget=65), drafter(), "NVIDIA H200")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("speculative_algorithm", "EAGLE"),
        (WIDTH, 8),
        ("speculative_dflash_block_size", 8),
        ("speculative_draft_window_size", 512),
        ("page_size", 16),
        ("enable_dp_attention", True),
        ("enable_linear_replayssm_spec", True),
        ("speculative_use_rejection_sampling", True),
    ],
)
def test_users_flag_that_does_not_go_with_a_tree_is_refused(flag, value):
    tree = overlay(kind="best-first", budget=16)
    check_arguments(tree, user())
    check_arguments(tree, user(**{WIDTH: 16, "page_size": 1, "speculative_algorithm": "DFLASH"}))
    with pytest.raises(PluginError, match=flag.split("_")[1].replace("_", "-")):
        check_arguments(tree, user(**{flag: value}))
    check_arguments(overlay(kind="chain"), user(**{flag: value}))


def test_shipped_tree_overlay_becomes_a_chain_by_one_key(tmp_path):
    loaded = load_overlay("smollm2-135m-dflash-cpu-tree")
    assert loaded.overlay.mechanisms == ("best-first-tree",)
    folder = tmp_path / "smollm2-135m-dflash-cpu-tree"
    folder.mkdir()
    text = loaded.path.read_text()
    (folder / "overlay.yaml").write_text(text.replace("kind: best-first", "kind: chain"))
    chain = load_overlay(str(folder)).overlay
    assert chain.mechanisms == ()
    assert tree_arguments(chain, drafter(), "cpu") == {WIDTH: 8}
