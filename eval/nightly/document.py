"""Puts a night into one JSON document: what the reports show and other programs read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from specpilot_sglang.eval.nightly.block import BlockResult
from specpilot_sglang.eval.nightly.config import Config, Deployment
from specpilot_sglang.eval.nightly.figures import Comparison, accept_lengths, comparisons, figures, time_split
from specpilot_sglang.eval.nightly.history import History, Point
from specpilot_sglang.eval.nightly.judge import Check, Series, judge, series_of
from specpilot_sglang.eval.nightly.plan import ARMS, LABELS, Pair
from specpilot_sglang.eval.nightly.run import Night, as_row
from specpilot_sglang.eval.report.page import plain

SCHEMA = 1


def build(
    night: Night,
    config: Config,
    history: History,
    pairs: Mapping[str, Pair],
    code: str,
    host: str,
    provenance: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Judge the night; return its document and the figures for the history (`series -> metric -> value`).

    Args:
        night: what was measured.
        config: its configuration.
        history: earlier runs.
        pairs: folders by deployment.
        code: short name of the code under test, shown beside change points.
        host: the machine; figures of another one are another series.
        provenance: see `eval.provenance`.
    """
    rows, kept = [], {}
    for deployment in config.deployments:
        series = f"{deployment.name}/{config.measured(deployment)}/{host}"
        earlier = history.points(series)
        compared = comparisons(night, deployment.name, config.load.concurrency, earlier, config.rules.confidence)
        now = figures(night, deployment.name, compared)
        this = Point(night.run.id, night.run.started_at, code, 0.0)
        lines = series_of(earlier, now, this, config.change_points)
        checks = judge(night, config, deployment, compared, lines)
        rows.append(_deployment(night, config, deployment, pairs[deployment.name], compared, checks, lines))
        kept[series] = now
    regressions = [c for row in rows for c in row["checks"] if c["state"] == "regression"]
    document = {
        "kind": "specpilot nightly",
        "schema": SCHEMA,
        "name": config.name,
        "state": "regression" if regressions else "ok",
        "regressions": [f"{c['deployment']}: {c['rule']}: {c['what']}" for c in regressions],
        "night": as_row(night),
        "host": host,
        "code": code,
        "deployments": rows,
        "config": config.model_dump(mode="json"),
        "provenance": dict(provenance),
    }
    return plain(document), kept


def _deployment(
    night: Night,
    config: Config,
    deployment: Deployment,
    pair: Pair,
    compared: Sequence[Comparison],
    checks: Sequence[Check],
    lines: Sequence[Series],
) -> dict[str, Any]:
    arms = {name: blocks for name in ARMS if (blocks := night.of(deployment.name, name))}
    return {
        "name": deployment.name,
        "model": pair.model.name,
        "draft": pair.draft.name,
        "about": pair.about,
        "dtype": deployment.dtype,
        "checks": [asdict(c) for c in checks],
        "comparisons": [_comparison(c) for c in compared],
        "arms": [_arm(name, blocks, config) for name, blocks in arms.items()],
        "history": [_series(s) for s in lines],
    }


def _comparison(c: Comparison) -> dict[str, Any]:
    r = c.ratio
    row = {"value": r.value, "low": r.low, "high": r.high, "rounds": r.rounds, "launch_noise": r.deviation}
    return {"arm": c.arm, "base": c.base, "concurrency": c.concurrency, **row}


def _arm(name: str, blocks: Sequence[BlockResult], config: Config) -> dict[str, Any]:
    first = blocks[0]
    forcing = first.forcing
    return {
        "name": name,
        "label": LABELS[name],
        "command": list(first.command),
        "start_s": [b.start_s for b in blocks],
        "loads": [_load(blocks, concurrency) for concurrency in config.load.concurrency],
        "memory": first.memory,
        "accuracy": {s: {"right": sum(a.values()), "of": len(a)} for s, a in first.accuracy.items()},
        "forcing": {k: v for k, v in forcing.items() if k not in ("mismatches", "verdicts")} if forcing else None,
        "accept_length_by_suite": accept_lengths(first),
        "histogram": list(first.histogram),
        "problems": [p for b in blocks for p in b.problems],
        "attestation": blocks[-1].attestation,
        "environment": first.environment,
    }


def _load(blocks: Sequence[BlockResult], concurrency: int) -> dict[str, Any]:
    loads = [load for b in blocks if (load := b.load(concurrency)) is not None]
    names = ("output_tok_s", "accept_length", "ttft_p50_s", "ttft_p99_s", "itl_p50_s", "itl_p99_s", "tokens", "failed")
    columns = {name: [getattr(load, name) for load in loads] for name in names}
    return {"concurrency": concurrency, **columns, "time": time_split(blocks, concurrency)}


def _series(s: Series) -> dict[str, Any]:
    points = [{"run": p.run, "started_at": p.started_at, "code": p.code, "value": p.value} for p in s.points]
    return {"metric": s.metric, "points": points, "changes": [asdict(c) for c in s.changes]}
