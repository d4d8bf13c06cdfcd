"""A mechanism that this version does not have is refused, never ignored."""

import pytest

from specpilot_sglang.overlay import OverlayError, load_named, load_overlay, overlay_folders, validate_supported
from specpilot_sglang.overlay.schema import Batching, LmHead, Overlay, Tree, Verify

ASKS = [
    ("lm_head: {certified_int8: true}", "certified-int8-lm-head", "lm_head.certified_int8"),
    ("verify: {levels: 2, cheap_rounds: 1}", "two-level-verify", "verify.levels"),
    ("batching: {shared_node_budget: 256}", "shared-node-budget", "batching.shared_node_budget"),
    ("batching: {block_size: per-request}", "per-request-block", "batching.block_size"),
    ("batching: {admission: cost-aware}", "cost-aware-admission", "batching.admission"),
]


@pytest.mark.parametrize(("text", "mechanism", "key"), ASKS)
def test_planned_mechanism_is_valid_yaml_but_refused(make_overlay, text, mechanism, key):
    loaded = load_overlay(str(make_overlay(f"name: x\n{text}\n")))
    assert mechanism in loaded.overlay.mechanisms
    with pytest.raises(OverlayError) as caught:
        validate_supported(loaded)
    assert caught.value.where == f"{loaded.path}:2:{key}"
    assert mechanism in caught.value.what
    assert key in caught.value.fix
    with pytest.raises(OverlayError, match=f"x:{key}: "):
        validate_supported(loaded.overlay)


def test_validate_command_refuses_what_the_server_would_refuse(cli, make_overlay):
    result = cli("overlay", "validate", make_overlay("name: x\nverify: {levels: 2, cheap_rounds: 1}\n"))
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert "overlay.yaml:2:verify.levels: " in result.err


def test_supported_parts_pass(make_overlay):
    tree = "tree: {kind: best-first, budget: 32, max_depth: 8}"
    text = f"name: x\nweights: {{format: w12, max_bits: 12.25}}\n{tree}\nserver_args: {{page_size: 1}}\n"
    patches = "patches: [{file: a.py, function: f}]\n"
    loaded = load_overlay(str(make_overlay(text + patches, a="def f(): return []\n")))
    validate_supported(loaded)
    assert loaded.overlay.mechanisms == ("w12", "best-first-tree")
    assert loaded.overlay.server_args.as_dict() == {"page_size": 1}


def test_every_non_stock_value_is_a_mechanism():
    """A new option that nobody maps to a mechanism would be ignored silently: each must move `mechanisms`."""
    changed = [
        LmHead(certified_int8=True),
        Tree(kind="best-first", budget=2),
        Verify(levels=2, cheap_rounds=1),
        Batching(shared_node_budget=2),
        Batching(block_size="per-request"),
        Batching(admission="cost-aware"),
    ]
    places = {LmHead: "lm_head", Tree: "tree", Verify: "verify", Batching: "batching"}
    for value in changed:
        assert Overlay(name="x", **{places[type(value)]: value}).mechanisms
    reached = {(places[type(value)], key) for value in changed for key in value.model_fields_set}
    known = {(place, key) for kind, place in places.items() for key in kind.model_fields}
    known -= {("tree", "max_depth"), ("tree", "call_budget")}  # they bound what `kind` asks for
    assert reached == known


def test_shipped_overlays_are_valid_and_supported():
    folders = overlay_folders()
    assert {folder.name for folder in folders} >= {"template", "smollm2-135m-dflash-cpu", "qwen3.8-27b-dflash2-h200"}
    for folder in folders:
        validate_supported(load_named(folder))


def test_template_is_stock():
    template = load_overlay("template").overlay
    assert template.mechanisms == ()
    assert template.server_args.as_dict() == {}
    assert template == Overlay(name="template", description=template.description)
