"""Refuses a server whose answers or speed are not what a recorded run would claim.

The environment and `/server_info` are read before and after a run, because acceptance thresholds can be changed
on a live server by `POST /set_internal_state`; the server's log shows a change that was taken back in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import psutil

from specpilot_sglang.errors import SpecPilotError

#: Prefix of SGLang's settings that replace real behaviour (acceptance, expert routing) by a made-up one.
SIMULATION_PREFIX = "SGLANG_SIMULATE_"
#: Server arguments that keep verification lossless at 1.0 only.
THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
#: What SGLang logs for an accepted `POST /set_internal_state`.
LIVE_CHANGE = "Config updated via context override"


class RunRefusedError(SpecPilotError):
    """A recorded run is refused; `reasons` lists everything that was found."""

    def __init__(self, when: str, reasons: Iterable[str], *, where: str = "") -> None:
        self.when, self.reasons = when, tuple(reasons)
        fix = "remove the cause; an unrecorded run keeps the figures with these reasons"
        super().__init__(f"recorded run refused {when} it: {'; '.join(self.reasons)}", where=where, fix=fix)


def check_lossless(
    env: Mapping[str, str], server_info: Mapping[str, Any], attestation: Mapping[str, Any] | None
) -> list[str]:
    """Return why a server must not be used in a recorded run; empty when nothing was found.

    Args:
        env: environment of the server.
        server_info: its `/server_info`.
        attestation: its `GET /specpilot`, None without the plugin.
    """
    reasons = [f"simulation in the environment: {n}={v}" for n, v in sorted(env.items()) if _simulates(n, v)]
    for place, values in _settings(server_info):
        for name in THRESHOLDS:
            if not _is_one(values.get(name)):
                reasons.append(f"{name} is {values[name]} in {place}: acceptance is relaxed")
    if attestation is not None:
        reasons += _attested(attestation)
    return reasons


def check_log(text: str) -> list[str]:
    """Return why a server's log rules out a recorded run: its configuration was changed while it ran."""
    changes = [line.partition(LIVE_CHANGE)[2].strip(" :") for line in text.splitlines() if LIVE_CHANGE in line]
    return [f"the server's configuration was changed while it ran: {change}" for change in changes]


def environment_of(processes: Iterable[psutil.Process]) -> dict[str, str]:
    """Return the union of the environments that `processes` were really started with.

    What one process sets in its own memory later is not seen here; its children's environments show it.
    """
    union: dict[str, str] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            union.update(process.environ())
    return union


def hits_grown(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, int]:
    """Return by how much each hot-path counter of rank 0 grew between two attestations."""
    first, last = _hits(before), _hits(after)
    return {name: count - first.get(name, 0) for name, count in last.items()}


def _hits(attestation: Mapping[str, Any] | None) -> dict[str, int]:
    ranks = (attestation or {}).get("ranks") or [{}]
    return {str(name): int(count) for name, count in (ranks[0].get("hits") or {}).items()}


def _simulates(name: str, value: str) -> bool:
    if not name.startswith(SIMULATION_PREFIX) or not value:
        return False
    try:
        return float(value) > 0  # a length of 0 or less, and a false switch, are off
    except ValueError:
        return value.strip().lower() not in {"false", "off", "no"}


def _settings(server_info: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    states = server_info.get("internal_states") or []
    live = [(f"the live state of scheduler {n}", s) for n, s in enumerate(states) if isinstance(s, Mapping)]
    return [("the server's arguments", server_info), *live]


def _is_one(value: Any) -> bool:
    if value is None:
        return True  # the server does not have the setting
    try:
        return float(value) == 1.0
    except (TypeError, ValueError):
        return False


def _attested(attestation: Mapping[str, Any]) -> list[str]:
    reasons = [
        f"the server attests simulated acceptance: {name}={value}"
        for name, value in sorted((attestation.get("simulated_acceptance") or {}).items())
        if _simulates(str(name), str(value))
    ]
    if attestation.get("consistent") is False:
        reasons.append("the server's ranks attest different overlays or settings")
    return reasons
