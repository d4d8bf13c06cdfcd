"""Asking for the plugin either applies an overlay in full or stops the server with one line and exit code 2."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from specpilot_sglang.plugin import attestation, counters, route
from specpilot_sglang.plugin.active import from_parent
from specpilot_sglang.plugin.entry import ENV_ACTIVE
from specpilot_sglang.plugin.launcher import Launcher

OVERLAY = "smollm2-135m-dflash-cpu"


@pytest.fixture
def launch(monkeypatch):
    """Parse a command line and resolve it as the launching process does, in this process, and undo it."""
    from specpilot_sglang.plugin import activation

    opened = []

    class Recorded(activation.PatchSet):
        def __init__(self, *args):
            super().__init__(*args)
            opened.append(self)

    monkeypatch.setattr(activation, "PatchSet", Recorded)
    launcher = Launcher()

    def run(*argv: str):
        from sglang.srt.server_args import prepare_server_args

        launcher.patches.apply()
        args = prepare_server_args(list(argv))
        args.resolve_once()
        return args

    yield run
    for patches in reversed(opened):
        patches.undo()
    launcher.undo()
    from specpilot_sglang.w12 import quant_method

    quant_method.unregister()
    os.environ.pop(ENV_ACTIVE, None)
    counters.reset()


def fails(capsys, launch, *argv):
    with pytest.raises(SystemExit) as info:
        launch(*argv)
    assert info.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("specpilot: error:")]
    assert len(lines) == 1
    return lines[0]


def test_flag_fills_algorithm_weights_and_block_and_exports_to_workers(launch, smollm2, drafter):
    from sglang.srt.arg_groups.overrides import resolving_view

    view = resolving_view(
        launch(
            "--model-path", str(smollm2), "--speculative-draft-model-path", str(drafter),
            "--speculative-plugin", "specpilot", "--device", "cpu",
        )
    )  # fmt: skip
    assert view.speculative_algorithm == "DFLASH"
    assert view.speculative_num_draft_tokens == 8
    assert view.quantization == "w12"
    assert view.speculative_draft_model_quantization is None
    active = from_parent(os.environ[ENV_ACTIVE])
    assert active.overlay == OVERLAY
    assert len(active.sha256) == 64
    report = attestation.rank_report(0)
    assert {p["target"].rpartition(".")[2] for p in report["patches"]} >= {
        "get_init_info", "get_internal_state", "forward_batch_generation",
    }  # fmt: skip
    assert json.loads(json.dumps(report)) == report


def test_users_own_flag_beats_the_overlay_and_is_recorded(launch, smollm2, drafter):
    launch(
        "--model-path", str(smollm2), "--speculative-draft-model-path", str(drafter),
        "--speculative-plugin", "specpilot", "--speculative-num-draft-tokens", "4", "--device", "cpu",
    )  # fmt: skip
    active = from_parent(os.environ[ENV_ACTIVE])
    assert active.overridden == {"speculative_num_draft_tokens": 4}
    assert "speculative_num_draft_tokens" not in active.server_args


def test_without_the_flag_every_symbol_is_stock_again(launch, smollm2):
    from specpilot_sglang.patching.source import fingerprint, locate
    from specpilot_sglang.plugin.known_sources import FINGERPRINTS

    originals = {target: locate(target).raw for target in FINGERPRINTS}
    launch("--model-path", str(smollm2), "--device", "cpu")
    for target, original in originals.items():
        assert locate(target).raw is original, target
        assert fingerprint(locate(target).raw) == FINGERPRINTS[target]
        assert not hasattr(getattr(original, "__func__", original), "__wrapped__"), target
    from sglang.srt.arg_groups.choices import QUANTIZATION_CHOICES
    from sglang.srt.layers.quantization import QUANTIZATION_METHODS

    assert "w12" not in QUANTIZATION_METHODS
    assert "w12" not in QUANTIZATION_CHOICES
    assert ENV_ACTIVE not in os.environ


def test_auto_or_stock_serves_stock_but_still_attests(launch, smollm2):
    launch(
        "--model-path", str(smollm2), "--speculative-plugin", "specpilot",
        "--specpilot-overlay", "auto-or-stock", "--device", "cpu",
    )  # fmt: skip
    report = attestation.rank_report(0)
    assert report["mode"] == "stock"
    assert report["mechanisms"] == {}


def test_w12_by_flag_alone_is_registered_in_stock_mode_too(launch, smollm2):
    from sglang.srt.layers.quantization import QUANTIZATION_METHODS

    launch(
        "--model-path", str(smollm2), "--speculative-plugin", "specpilot", "--quantization", "w12",
        "--specpilot-overlay", "auto-or-stock", "--device", "cpu",
    )  # fmt: skip
    assert "w12" in QUANTIZATION_METHODS
    assert from_parent(os.environ[ENV_ACTIVE]).w12 == {"max_bits": None, "exclude": []}


def test_w12_without_the_plugin_is_one_line(capsys, launch, smollm2):
    assert "--speculative-plugin" in fails(capsys, launch, "--model-path", str(smollm2), "--quantization", "w12")


def test_simulated_acceptance_shows_in_the_attestation(launch, smollm2, drafter, monkeypatch):
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3.5")
    launch(
        "--model-path", str(smollm2), "--speculative-draft-model-path", str(drafter),
        "--speculative-plugin", "specpilot", "--device", "cpu",
    )  # fmt: skip
    assert attestation.rank_report(0)["simulated_acceptance"] == {"SGLANG_SIMULATE_ACC_LEN": "3.5"}


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--specpilot-overlay", "nope"], "no overlay is called 'nope'"),
        (["--speculative-draft-model-path", "/no/such"], "no such folder"),
        (["--tokenizer-worker-num", "2"], "--tokenizer-worker-num"),
        (["--quantization", "fp8"], "--quantization fp8"),
        (["--enable-lora", "--lora-paths", "x=y"], "LoRA"),
    ],
)
def test_bad_wish_is_one_line(capsys, launch, smollm2, drafter, extra, says):
    argv = [
        "--model-path", str(smollm2), "--speculative-draft-model-path", str(drafter),
        "--speculative-plugin", "specpilot", "--device", "cpu", *extra,
    ]  # fmt: skip
    assert says in fails(capsys, launch, *argv)


def test_no_matching_overlay_lists_what_exists(capsys, launch, smollm2):
    line = fails(capsys, launch, "--model-path", str(smollm2), "--speculative-plugin", "specpilot", "--device", "cpu")
    assert OVERLAY in line


def test_wrong_sglang_version_stops(capsys, launch, smollm2, drafter, monkeypatch):
    from specpilot_sglang.plugin import activation, launcher

    def other():
        return "0.5.24"

    monkeypatch.setattr(launcher, "installed_sglang_version", other)
    monkeypatch.setattr(activation, "installed_sglang_version", other)
    argv = ["--model-path", str(smollm2), "--speculative-draft-model-path", str(drafter)]
    assert "0.5.24" in fails(capsys, launch, *argv, "--speculative-plugin", "specpilot", "--device", "cpu")


def test_drifted_source_stops_with_file_and_symbol(capsys, launch, smollm2, drafter, monkeypatch):
    from specpilot_sglang.plugin import known_sources

    target = "sglang.srt.managers.scheduler:Scheduler.get_init_info"
    monkeypatch.setitem(known_sources.FINGERPRINTS, target, "0" * 16)
    argv = ["--model-path", str(smollm2), "--speculative-draft-model-path", str(drafter)]
    line = fails(capsys, launch, *argv, "--speculative-plugin", "specpilot", "--device", "cpu")
    assert "scheduler.py" in line
    assert "Scheduler.get_init_info" in line


def test_overlay_python_that_fails_stops(capsys, launch, smollm2, drafter, tmp_path, repository):
    folder = tmp_path / "mine"
    shutil.copytree(repository / "overlays" / OVERLAY, folder)
    text = (folder / "overlay.yaml").read_text() + "\npatches:\n  - {file: extra.py, function: patches}\n"
    (folder / "overlay.yaml").write_text(text)
    (folder / "extra.py").write_text("def patches():\n    raise KeyError('boom')\n")
    argv = ["--model-path", str(smollm2), "--speculative-draft-model-path", str(drafter), "--device", "cpu"]
    line = fails(capsys, launch, *argv, "--speculative-plugin", "specpilot", "--specpilot-overlay", str(folder))
    assert "extra.py:patches" in line
    assert "KeyError" in line


def test_overlay_changed_between_launcher_and_worker_stops(launch, smollm2, drafter, tmp_path, repository):
    from specpilot_sglang.errors import PluginError
    from specpilot_sglang.plugin.mechanisms import install_mechanisms

    folder = tmp_path / "mine"
    shutil.copytree(repository / "overlays" / OVERLAY, folder)
    launch(
        "--model-path", str(smollm2), "--speculative-draft-model-path", str(drafter), "--device", "cpu",
        "--speculative-plugin", "specpilot", "--specpilot-overlay", str(folder),
    )  # fmt: skip
    active = from_parent(os.environ[ENV_ACTIVE])
    (folder / "overlay.yaml").write_text((folder / "overlay.yaml").read_text() + "# changed\n")
    with pytest.raises(PluginError, match="changed"):
        install_mechanisms(active)


def test_a_rank_that_does_not_attest_or_runs_another_overlay_stops(launch, smollm2, drafter):
    from specpilot_sglang.errors import PluginError

    launch(
        "--model-path", str(smollm2), "--speculative-draft-model-path", str(drafter), "--device", "cpu",
        "--speculative-plugin", "specpilot",
    )  # fmt: skip
    good = {"status": "ready", attestation.KEY: attestation.rank_report(0)}
    assert len(attestation.check_ranks([good, good])) == 2
    assert route.document([good[attestation.KEY]])["ranks"][0]["proofs"] == ["speculative_steps"]
    with pytest.raises(PluginError, match="rank 1 did not attest"):
        attestation.check_ranks([good, {"status": "ready"}])
    other = {**good[attestation.KEY], "overlay": {"name": "x", "sha256": "0" * 64}}
    with pytest.raises(PluginError, match="another overlay"):
        attestation.check_ranks([good, {attestation.KEY: other}])
