"""What a nightly run measures: its blocks in order, and the servers of each deployment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.nightly.config import PACKAGED, Config, Deployment
from specpilot_sglang.eval.presets import ar_args, dflash_args, float32_args, specpilot_args

#: AR first: the other two are forced along its answers.
ARMS = ("ar", "stock", "specpilot")
LABELS = {"ar": "AR", "stock": "stock", "specpilot": "specpilot"}


@dataclass(frozen=True)
class BlockKey:
    """One fresh launch of one server: `round` counts from 0."""

    deployment: str
    arm: str
    round: int

    @property
    def label(self) -> str:
        """The block in words, also a folder name."""
        return f"{self.deployment}-{self.arm}-{self.round}"


@dataclass(frozen=True)
class Pair:
    """Folders of a deployment's target and drafter; `about` says what the target's weights are."""

    model: Path
    draft: Path
    about: str


def block_keys(config: Config) -> list[BlockKey]:
    """Return all blocks in the order they run.

    Every second round runs backwards (ABBA), so that a machine that warms up or slows down favours no arm.
    """
    keys = []
    for round_ in range(config.rounds):
        for deployment in config.deployments:
            arms = ARMS if round_ % 2 == 0 else ARMS[::-1]
            keys += [BlockKey(deployment.name, arm, round_) for arm in arms]
    return keys


def resolve(deployment: Deployment, packaged: Callable[[], Pair]) -> Pair:
    """Return the folders of a deployment; `packaged` prepares the model that the package brings."""
    if deployment.model == PACKAGED and deployment.draft == PACKAGED:
        return packaged()
    about = "" if deployment.model != PACKAGED else packaged().about
    model = packaged().model if deployment.model == PACKAGED else Path(deployment.model).expanduser()
    draft = packaged().draft if deployment.draft == PACKAGED else Path(deployment.draft).expanduser()
    return Pair(model, draft, about)


def packaged_pair() -> Pair:
    """Prepare SmolLM2-135M-Instruct and its drafter."""
    from specpilot_sglang.assets import drafter_path, prepare_smollm2

    return Pair(prepare_smollm2(), drafter_path(), "weights dequantised from a 4-bit Q4_1 release")


def arm_of(deployment: Deployment, pair: Pair, name: str) -> Arm:
    """Return the server configuration of one arm."""
    dtype, most = deployment.dtype, deployment.max_running_requests
    extra = [*(float32_args() if dtype == "float32" else []), *deployment.server_args]
    if name == "ar":
        args = ar_args(pair.model, dtype=dtype, max_running=most)
    elif name == "stock":
        args = [*dflash_args(pair.model, pair.draft, dtype=dtype, max_running=most), *deployment.stock_args]
    else:
        args = specpilot_args(pair.model, pair.draft, deployment.overlay, dtype=dtype, max_running=most)
    # Metrics on: SGLang's counter of verify steps gives accept lengths exactly.
    return Arm(name, (*args, *extra, "--enable-metrics"), dict(deployment.env))
