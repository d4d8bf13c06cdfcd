"""Which overlay a deployment gets, and what is said when none fits."""

import pytest

from specpilot_sglang.overlay import Deployment, OverlayError, mismatches, select_overlay
from specpilot_sglang.overlay.schema import Match

H200 = Deployment("Qwen3_5ForCausalLM", "DFlash2DraftModel", "NVIDIA H200", "0.5.23")
CPU = Deployment("LlamaForCausalLM", "DFlashDraftModel", "cpu", "0.5.23")
OTHER = Deployment("OPTForCausalLM", None, "NVIDIA A100-SXM4-80GB", "0.5.23")


@pytest.fixture
def library(make_overlay, monkeypatch, tmp_path):
    """Overlays by name -> match block, as the only library besides the shipped one."""

    def make(**matches: str):
        for name, match in matches.items():
            make_overlay(f"name: {name}\nmatch: {match}\n", name=f"lib/{name}")
        monkeypatch.setenv("SPECPILOT_OVERLAY_PATH", str(tmp_path / "lib"))

    return make


@pytest.mark.parametrize("spec", [None, "auto", "auto-or-stock"])
@pytest.mark.parametrize(
    ("deployment", "name"),
    [
        (H200, "qwen3.8-27b-dflash2-h200"),
        (Deployment("Qwen3_5ForConditionalGeneration", *list(vars(H200).values())[1:]), "qwen3.8-27b-dflash2-h200"),
        (Deployment(H200.target, H200.drafter, "NVIDIA H100 80GB HBM3", "0.5.23"), "qwen3.8-27b-dflash2-h200"),
        (CPU, "smollm2-135m-dflash-cpu"),
    ],
)
def test_shipped_overlays_are_found(spec, deployment, name):
    assert select_overlay(spec, deployment).overlay.name == name


def test_no_match_says_why_for_each_and_auto_or_stock_serves_stock():
    assert select_overlay("auto-or-stock", OTHER) is None
    with pytest.raises(OverlayError) as caught:
        select_overlay("auto", OTHER)
    line = caught.value.line()
    assert "smollm2-135m-dflash-cpu: target is 'OPTForCausalLM', not 'LlamaForCausalLM', drafter is none" in line
    assert "gpu is 'NVIDIA A100-SXM4-80GB', not 'H100|H200'" in line
    assert "template: no match block, used only by name" in line
    assert "auto-or-stock" in caught.value.fix


@pytest.mark.parametrize(
    ("field", "pattern", "actual"),
    [
        ("target", "Qwen3_5ForCausalLM", "Qwen3_5ForCausalLMMTP"),  # the whole name must match
        ("target", "Qwen3", "Qwen3ForCausalLM"),
        ("drafter", "DFlash.*", "DSparkDraftModel"),
        ("drafter", ".*", None),
        ("gpu", "H200", "cpu"),
        ("gpu", "^H200", "NVIDIA H200"),
        ("sglang", "==0.5.23", "0.5.24"),
        ("sglang", "<0.5.23", "0.5.23"),
        ("sglang", "==0.5.23", "not-a-version"),
    ],
)
def test_mismatch_is_reported_with_field_pattern_and_value(field, pattern, actual):
    deployment = Deployment(**{**vars(H200), field: actual})
    (miss,) = mismatches(Match(**{field: pattern}), deployment)
    assert (miss.field, miss.pattern, miss.actual) == (field, pattern, actual)
    assert repr(pattern) in str(miss)


@pytest.mark.parametrize(
    ("field", "pattern", "actual"),
    [
        ("gpu", "h100|h200", "NVIDIA H200"),
        ("sglang", "==0.5.23", "0.5.23+cu130"),
        ("sglang", ">=0.5,<0.6", "0.5.23rc1"),
        ("target", "Qwen3_5.*", "Qwen3_5ForCausalLM"),
    ],
)
def test_lenient_matches(field, pattern, actual):
    assert not mismatches(Match(**{field: pattern}), Deployment(**{**vars(H200), field: actual}))


def test_more_fields_win(library):
    library(wide="{target: OPT.*}", narrow="{target: OPT.*, gpu: A100}")
    assert select_overlay(None, OTHER).overlay.name == "narrow"


def test_spelt_out_names_beat_patterns(library):
    library(pattern="{target: OPT.*, gpu: A100}", exact="{target: OPTForCausalLM, gpu: A100}")
    assert select_overlay(None, OTHER).overlay.name == "exact"


@pytest.mark.parametrize("spec", ["auto", "auto-or-stock"])
def test_tie_is_an_error_that_names_both(library, spec):
    library(one="{target: OPT.*}", two="{gpu: A100}")
    with pytest.raises(OverlayError, match=r"one .*and two .*equally well"):
        select_overlay(spec, OTHER)


@pytest.mark.parametrize("spec", ["auto", "auto-or-stock"])
def test_broken_overlay_in_the_library_is_never_skipped(library, spec):
    library(broken="{gpu: 3}")
    with pytest.raises(OverlayError, match=r"overlay\.yaml:2:match\.gpu: expected text, got 3"):
        select_overlay(spec, CPU)


def test_explicit_overlay_that_does_not_fit_names_line_field_pattern_and_value():
    with pytest.raises(OverlayError) as caught:
        select_overlay("smollm2-135m-dflash-cpu", Deployment(CPU.target, CPU.drafter, "NVIDIA H200", "0.5.23"))
    error = caught.value
    assert error.where.endswith("overlay.yaml:10:match.gpu")
    assert "gpu is 'NVIDIA H200', not 'cpu'" in error.what
    assert error.fix


def test_explicit_overlay_without_match_block_fits_anything():
    assert select_overlay("template", OTHER).overlay.name == "template"


def test_explicit_path_is_matched_too(make_overlay):
    folder = make_overlay("name: x\nmatch: {drafter: DFlash.*}\n")
    assert select_overlay(str(folder), CPU).overlay.name == "x"
    with pytest.raises(OverlayError, match="drafter is none"):
        select_overlay(str(folder), OTHER)
