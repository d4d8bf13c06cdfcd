import json

import pytest


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith(("SGLANG_", "SPECPILOT_")) or name == "CUDA_VISIBLE_DEVICES":
            monkeypatch.delenv(name)


@pytest.fixture
def make_model(tmp_path):
    """Writes a model folder that holds only a config.json, and returns it."""

    def make(name: str, **config: object):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


@pytest.fixture
def pair(make_model):
    """A target and a drafter that fit each other and the overlay for the CPU."""
    size = {"hidden_size": 64, "vocab_size": 100}
    target = make_model("target", architectures=["LlamaForCausalLM"], num_hidden_layers=4, **size)
    dflash = {"block_size": 8, "mask_token_id": 1, "target_layer_ids": [0, 2]}
    drafter = make_model(
        "drafter", architectures=["DFlashDraftModel"], num_target_layers=4, dflash_config=dflash, **size
    )
    return target, drafter
