"""The activated overlay of this process, and how it travels to worker processes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from specpilot_sglang.errors import PluginError
from specpilot_sglang.plugin.entry import ENV_ACTIVE

_MODE_OVERLAY, _MODE_STOCK = "overlay", "stock"


@dataclass(frozen=True)
class Active:
    """Decision of the launching process, the same in every worker.

    Attributes:
        mode: `overlay`, or `stock` when `auto-or-stock` found no match.
        overlay: name of the overlay, empty in stock mode.
        path: its overlay.yaml.
        sha256: hash over all files of the overlay's folder.
        request: what the user wrote (name, path, auto, auto-or-stock).
        algorithm: speculative algorithm in use, None for plain decoding.
        server_args: arguments that the overlay or the plugin filled in.
        overridden: overlay arguments that the user's own flags replaced.
        w12: settings of the W12 method (`max_bits`, `exclude`), None where no weights are W12.
        tree: settings of the draft tree (`budget`, `max_depth`), None for a chain.
    """

    mode: str
    overlay: str = ""
    path: str = ""
    sha256: str = ""
    request: str = "auto"
    algorithm: str | None = None
    server_args: dict[str, Any] = field(default_factory=dict)
    overridden: dict[str, Any] = field(default_factory=dict)
    w12: dict[str, Any] | None = None
    tree: dict[str, Any] | None = None

    @property
    def stock(self) -> bool:
        """Whether no overlay applies and stock behaviour was allowed."""
        return self.mode == _MODE_STOCK

    def export(self) -> None:
        """Hand the decision to processes that are spawned from now on."""
        os.environ[ENV_ACTIVE] = json.dumps(asdict(self))


def stock_mode(**values: Any) -> Active:
    """Return the decision to stay stock."""
    return Active(mode=_MODE_STOCK, **values)


def overlay_mode(**values: Any) -> Active:
    """Return the decision to apply an overlay."""
    return Active(mode=_MODE_OVERLAY, **values)


def from_parent(text: str) -> Active:
    """Read the launching process's decision.

    Raises:
        PluginError: the environment variable was tampered with.
    """
    try:
        return Active(**json.loads(text))
    except (TypeError, ValueError) as exc:
        raise PluginError(f"not a decision of the launching process ({exc})", where=ENV_ACTIVE) from exc
