"""Prometheus metrics beside SGLang's own, under `--enable-metrics`."""

from __future__ import annotations

from specpilot_sglang.plugin import counters
from specpilot_sglang.plugin.active import Active


def start(active: Active, rank: int, enabled: bool) -> None:
    """Export overlay identity and hit counters of this rank.

    SGLang sets PROMETHEUS_MULTIPROC_DIR before it spawns schedulers; prometheus_client reads it when it is
    imported, so it is imported here and not at the top.
    """
    if not enabled:
        return
    from prometheus_client import Counter, Gauge

    info = Gauge(
        "specpilot_overlay_info",
        "1 for the overlay that this rank applied.",
        ["overlay", "sha256", "mode", "rank"],
        multiprocess_mode="mostrecent",
    )
    info.labels(active.overlay, active.sha256, active.mode, str(rank)).set(1)
    hits = Counter("specpilot_hits", "Passes through a patched hot path.", ["path", "rank"])
    for name, value in counters.snapshot().items():
        hits.labels(name, str(rank)).inc(value)
    counters.listen(lambda name, n: hits.labels(name, str(rank)).inc(n))
