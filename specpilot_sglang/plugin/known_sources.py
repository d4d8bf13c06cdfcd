"""Fingerprints of the SGLang 0.5.23 sources that the plugin patches (see `patching.fingerprint`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specpilot_sglang.patching import Kind, Patch

FINGERPRINTS = {
    "sglang.srt.server_args:ServerArgs.add_cli_args": "f8e1950c62c33bee",
    "sglang.srt.server_args:ServerArgs.from_cli_args": "e42b052ddfaab4a7",
    "sglang.srt.server_args:ServerArgs.resolve_once": "1a6420af6f198548",
    "sglang.srt.managers.scheduler:Scheduler.get_init_info": "10b3059e516354be",
    "sglang.srt.managers.scheduler:Scheduler.get_internal_state": "f358e85f4621464b",
    "sglang.srt.entrypoints.http_server:_setup_and_run_http_server": "bdcd86e50f953de0",
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2.forward_batch_generation": "f807dc5a4dcb3f41",
    "sglang.srt.speculative.dspark_components.dspark_worker_v2:DSparkWorkerV2.forward_batch_generation": (
        "f1931e67f8e1fd56"
    ),
}


def around(target: str, replacement: Callable[..., Any], why: str) -> Patch:
    """Declare an `around` patch of a symbol in the table."""
    return Patch(target, Kind.AROUND, replacement, FINGERPRINTS[target], why)
