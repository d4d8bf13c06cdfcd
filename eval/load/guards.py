"""Refuses a server whose answers or speed are not what a recorded run would claim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_lossless(
    env: Mapping[str, str], server_info: Mapping[str, Any], attestation: Mapping[str, Any] | None
) -> list[str]:
    """Return why a server must not be used in a recorded run; empty when nothing was found.

    Args:
        env: environment of the server.
        server_info: its `/server_info`.
        attestation: its `GET /specpilot`, None without the plugin.
    """
    raise NotImplementedError
