"""What each rank says it really applied and ran: in the start log, in `GET /specpilot`, in the metrics."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from specpilot_sglang import SGLANG_VERSION, __version__
from specpilot_sglang.errors import PluginError
from specpilot_sglang.patching import AppliedPatch, Patch
from specpilot_sglang.plugin import counters, metrics, route
from specpilot_sglang.plugin.active import Active
from specpilot_sglang.plugin.known_sources import around

logger = logging.getLogger(__name__)

#: Key of our part in SGLang's own scheduler messages.
KEY = "specpilot"
#: Settings that fake acceptance; a recorded run must have none of them.
SIMULATION_VARIABLES = ("SGLANG_SIMULATE_ACC_LEN", "SGLANG_SIMULATE_ACC_METHOD", "SGLANG_SIMULATE_ACC_TOKEN_MODE")

_active: Active | None = None
_applied: list[AppliedPatch] = []


def start(active: Active, applied: list[AppliedPatch]) -> None:
    """Remember what was applied in this process."""
    global _active, _applied
    _active, _applied = active, applied


def rank_report(rank: int | None = None) -> dict[str, Any]:
    """Return this process's attestation, of msgpack-native values only."""
    active = _require()
    return {
        "rank": rank,
        "pid": os.getpid(),
        "plugin": __version__,
        "sglang": SGLANG_VERSION,
        "mode": active.mode,
        "overlay": {"name": active.overlay, "sha256": active.sha256, "request": active.request},
        "algorithm": active.algorithm,
        "server_args": dict(active.server_args),
        "overridden": dict(active.overridden),
        "patches": [asdict(p) for p in _applied],
        "mechanisms": mechanism_report(active),
        "hits": counters.snapshot(),
        "proofs": counters.proofs(),
        "simulated_acceptance": {n: os.environ[n] for n in SIMULATION_VARIABLES if os.environ.get(n)},
    }


def mechanism_report(active: Active) -> dict[str, Any]:
    """Return each mechanism's own figures."""
    report: dict[str, Any] = {}
    if active.w12 is not None:
        from specpilot_sglang.w12 import quant_method

        report["w12"] = quant_method.report()
    if active.tree is not None:
        report["best-first-tree"] = dict(active.tree)
    return report


def summary() -> str:
    """Return the log line of this process."""
    active = _require()
    if active.stock:
        return f"stock mode (auto-or-stock), {len(_applied)} patches for the attestation"
    return (
        f"overlay {active.overlay} sha256 {active.sha256[:12]}, algorithm {active.algorithm or 'none'}, "
        f"{len(_applied)} patches, arguments {active.server_args}"
        + (f", overridden by your flags {active.overridden}" if active.overridden else "")
    )


def patches(active: Active) -> Iterable[Patch]:
    """Return the patches that carry attestations from ranks to the HTTP server."""
    yield around("sglang.srt.managers.scheduler:Scheduler.get_init_info", _init_info, "each rank attests at start")
    yield around("sglang.srt.managers.scheduler:Scheduler.get_internal_state", _internal_state, "ranks report counters")
    yield around(
        "sglang.srt.entrypoints.http_server:_setup_and_run_http_server", _serve, "checks ranks, adds GET /specpilot"
    )


def check_ranks(infos: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every rank's attestation, or refuse to serve when one is missing or differs.

    Raises:
        PluginError: a rank did not attest, or attests another overlay.
    """
    active = _require()
    reports = [info.get(KEY) for info in infos]
    for rank, report in enumerate(reports):
        if not isinstance(report, dict):
            raise PluginError(f"rank {rank} did not attest: it may be running stock", fix="check SGLANG_PLUGINS")
        if report["overlay"]["sha256"] != active.sha256:
            raise PluginError(f"rank {rank} runs another overlay than the launcher", fix="start the server again")
    return [r for r in reports if isinstance(r, dict)]


def _init_info(original: Callable[..., Any], scheduler: Any) -> dict[str, Any]:
    from sglang.srt.runtime_context import get_observability

    info: dict[str, Any] = original(scheduler)
    rank = _rank_of(scheduler)
    metrics.start(_require(), rank, bool(get_observability().enable_metrics))
    info[KEY] = rank_report(rank)
    logger.info("specpilot: rank %s: %s", rank, summary())
    return info


def _internal_state(original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    """Every rank handles this request in the same scheduler step, so a collective is safe here."""
    import torch.distributed as dist

    output = original(scheduler, request)
    mine = rank_report(_rank_of(scheduler))
    group = scheduler.tp_cpu_group
    reports: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(reports, mine, group=group)
    output.internal_state[KEY] = {"ranks": reports}
    return output


def _serve(original: Callable[..., Any], server_args: Any, tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
    infos = kwargs["scheduler_infos"] if "scheduler_infos" in kwargs else args[2]
    ranks = check_ranks(infos)
    logger.info("specpilot: %d rank(s) attested, %s", len(ranks), summary())
    route.add(tokenizer)
    return original(server_args, tokenizer, *args, **kwargs)


def _rank_of(scheduler: Any) -> int:
    import torch.distributed as dist

    return int(dist.get_rank()) if dist.is_initialized() else 0


def _require() -> Active:
    if _active is None:
        raise PluginError("no overlay is active in this process")
    return _active
