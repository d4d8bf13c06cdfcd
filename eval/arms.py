"""One server configuration under comparison: an arm of an experiment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.servers import Server

_PLUGIN_FLAG, _OVERLAY_FLAG = "--speculative-plugin", "--specpilot-overlay"


@dataclass(frozen=True)
class Arm:
    """One server configuration.

    Attributes:
        name: short, unique inside an experiment, usable in file names: `stock`, `candidate`.
        args: server arguments without host, port and overlay, as `eval.presets` builds them.
        env: added to the server's environment.
        overlay: overlay name or path that the plugin must run; None is stock, or whatever `args` asks for.
    """

    name: str
    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    overlay: str | None = None

    @property
    def server_args(self) -> tuple[str, ...]:
        """Everything `Server` needs: `args`, and the plugin's two flags when there is an overlay."""
        if self.overlay is None:
            return self.args
        plugin = () if _PLUGIN_FLAG in self.args else (_PLUGIN_FLAG, "specpilot")
        return (*self.args, *plugin, _OVERLAY_FLAG, self.overlay)

    @property
    def plugin(self) -> bool:
        """Whether the arm asks for the plugin, so that it must attest."""
        return self.overlay is not None or _PLUGIN_FLAG in self.args

    def server(self, *, log: Path | None = None, start_timeout_s: float = 600.0) -> Server:
        """Return the arm's server, not started yet; use it in a `with` block."""
        return Server(self.server_args, env=self.env, log=log, name=self.name, start_timeout_s=start_timeout_s)

    def to_json(self) -> dict[str, Any]:
        """Return the arm as JSON values."""
        return {"name": self.name, "args": list(self.args), "env": dict(self.env), "overlay": self.overlay}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Arm:
        """Read what `to_json` wrote; raise `SpecPilotError` when it is something else."""
        try:
            args, env, overlay = value["args"], value.get("env") or {}, value.get("overlay")
            pairs = {str(k): str(v) for k, v in env.items()}
            return cls(str(value["name"]), tuple(map(str, args)), pairs, None if overlay is None else str(overlay))
        except (KeyError, TypeError, AttributeError) as exc:
            fix = "give name, args (a list), and optionally env and overlay"
            raise SpecPilotError(f"not an arm ({exc!r})", fix=fix) from exc

    def fingerprint(self) -> str:
        """Return a hash of everything that makes the arm what it is, but its name."""
        content = {key: value for key, value in self.to_json().items() if key != "name"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
