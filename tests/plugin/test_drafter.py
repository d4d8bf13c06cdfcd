"""A drafter that does not fit its target is refused before any weight is read."""

from __future__ import annotations

import json
import struct

import pytest

from specpilot_sglang.errors import PluginError
from specpilot_sglang.plugin.checkpoints import read_checkpoint
from specpilot_sglang.plugin.drafter import algorithm_of, check_drafter

TARGET = {"architectures": ["LlamaForCausalLM"], "hidden_size": 576, "vocab_size": 49152, "num_hidden_layers": 30}
DRAFTER = {
    "architectures": ["DFlashDraftModel"],
    "hidden_size": 576,
    "vocab_size": 49152,
    "num_target_layers": 30,
    "block_size": 8,
    "dflash_config": {"block_size": 8, "mask_token_id": 16, "target_layer_ids": [1, 10, 18, 27]},
}


@pytest.fixture
def pair(tmp_path):
    def build(target=(), drafter=(), dflash=(), fc=None):
        for name, base, change in (("target", TARGET, target), ("drafter", DRAFTER, drafter)):
            config = {**json.loads(json.dumps(base)), **dict(change)}
            if name == "drafter":
                config["dflash_config"] = {**config["dflash_config"], **dict(dflash)}
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "config.json").write_text(json.dumps(config))
        if fc:
            header = json.dumps({"fc.weight": {"dtype": "BF16", "shape": fc, "data_offsets": [0, 0]}}).encode()
            (tmp_path / "drafter" / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
        return [read_checkpoint(str(tmp_path / n), f"--{n}") for n in ("target", "drafter")]

    return build


def test_the_shipped_drafter_fits_the_real_model(smollm2, drafter):
    target, draft = read_checkpoint(str(smollm2), "--model"), read_checkpoint(str(drafter), "--draft")
    check_drafter(target, draft)
    assert algorithm_of(draft) == "DFLASH"


def test_nested_text_config_is_the_one_compared(pair):
    target, draft = pair(target={"text_config": {**TARGET, "hidden_size": 640}})
    with pytest.raises(PluginError, match="hidden_size"):
        check_drafter(target, draft)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"drafter": {"hidden_size": 512}}, "hidden_size"),
        ({"drafter": {"vocab_size": 32000}}, "vocab_size"),
        ({"drafter": {"num_target_layers": 28}}, "num_target_layers"),
        ({"dflash": {"target_layer_ids": [1, 10, 18, 29]}}, "target_layer_ids"),
        ({"dflash": {"target_layer_ids": [-1, 10]}}, "target_layer_ids"),
        ({"dflash": {"target_layer_ids": [10, 1]}}, "target_layer_ids"),
        ({"dflash": {"target_layer_ids": []}}, "target_layer_ids"),
        ({"dflash": {"target_layer_ids": "1,2"}}, "target_layer_ids"),
        ({"dflash": {"mask_token_id": 49152}}, "mask_token_id"),
        ({"dflash": {"block_size": 1}}, "block_size"),
        ({"fc": [576, 3 * 576]}, "target_layer_ids"),
    ],
)
def test_mismatch_names_file_and_key(pair, change, key):
    with pytest.raises(PluginError) as info:
        check_drafter(*pair(**change))
    assert f"config.json:{key}" in info.value.line()
    assert "Fix:" in info.value.line()


def test_fitting_pair_passes(pair):
    check_drafter(*pair(fc=[576, 4 * 576]))


@pytest.mark.parametrize(
    ("path", "message"),
    [("/no/such/folder", "no such folder"), ("./nothing-here", "no such folder"), ("a/b/c", "no such folder")],
)
def test_missing_folder(path, message):
    with pytest.raises(PluginError, match=message):
        read_checkpoint(path, "--speculative-draft-model-path")


def test_folder_without_config_and_broken_config(tmp_path):
    with pytest.raises(PluginError, match=r"config\.json"):
        read_checkpoint(str(tmp_path), "--model-path")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(PluginError, match="JSON"):
        read_checkpoint(str(tmp_path), "--model-path")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(PluginError, match="architectures"):
        read_checkpoint(str(tmp_path), "--model-path")
