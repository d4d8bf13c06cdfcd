"""Judges a night: each rule says ok, regression, or why it could not be judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.forcing_verdict import compare
from specpilot_sglang.eval.nightly.block import BlockResult
from specpilot_sglang.eval.nightly.changes import Change, find_changes
from specpilot_sglang.eval.nightly.config import ChangePoints, Config, Deployment
from specpilot_sglang.eval.nightly.figures import Comparison
from specpilot_sglang.eval.nightly.history import Point
from specpilot_sglang.eval.nightly.run import NOT_TRIED, Night

State = Literal["ok", "regression", "not judged", "note"]
#: What a larger value means; metrics that are not listed have no good direction.
_BETTER = {"speedup": 1, "tok_s": 1, "accept_length": 1, "memory_gib": -1, "accuracy": 1, "mismatch_rate": -1}
_BETTER |= {"itl_p99_ms": -1, "ttft_p50_ms": -1, "start_s": -1}
#: Metrics of which a bad change fails the night; the others only leave a note.
_JUDGED = ("speedup.specpilot", "accept_length.specpilot", "memory_gib.specpilot.rss", "memory_gib.specpilot.weights")


@dataclass(frozen=True)
class Check:
    """One rule's answer."""

    deployment: str
    rule: str
    state: State
    what: str


@dataclass(frozen=True)
class Series:
    """One figure's history, this night's value last, with its change points."""

    metric: str
    points: tuple[Point, ...]
    changes: tuple[Change, ...]


def judge(
    night: Night, config: Config, deployment: Deployment, compared: Sequence[Comparison], series: Sequence[Series]
) -> list[Check]:
    """Return every rule's answer for one deployment, regressions first."""
    name = deployment.name
    arms = {arm: night.of(name, arm) for arm in ("ar", "stock", "specpilot")}
    found = [Check(name, "measured", "regression", f"{k.label}: {why}") for k, why in _failures(night, name)]
    if arms["specpilot"]:
        found += [Check(name, "measured", *_whole(arms))]
        found += [Check(name, "speed against stock", *_speed(c, config)) for c in compared if _is_main(c)]
        found += [Check(name, "accept length", *row) for row in _accept(arms, config)]
        found += [Check(name, "token forcing", *_forcing(arms, config, deployment))]
        found += [Check(name, f"accuracy on {suite}", *row) for suite, row in _accuracy(arms, config)]
    found += [Check(name, "history", *row) for row in _history(series, config.change_points)]
    order = {"regression": 0, "not judged": 1, "note": 2, "ok": 3}
    return sorted(found, key=lambda check: order[check.state])


def series_of(
    history: Mapping[str, Sequence[Point]], now: Mapping[str, float], this: Point, rules: ChangePoints
) -> list[Series]:
    """Return the history of every figure of this night; `this` is a point of this night with any value."""
    found = []
    for metric, value in now.items():
        if metric.startswith(("squares.", "freedom.")):
            continue
        earlier = [p for p in history.get(metric, ()) if p.run != this.run]
        points = (*earlier, Point(this.run, this.started_at, this.code, value))
        values = [p.value for p in points]
        changes = find_changes(values, max_pvalue=rules.max_pvalue, min_change=rules.min_change)
        found.append(Series(metric, points, tuple(changes)))
    return found


def _failures(night: Night, name: str) -> Iterator[tuple]:
    for key, why in night.failures.items():
        if key.deployment == name and why != NOT_TRIED:
            yield key, why


def _is_main(c: Comparison) -> bool:
    return (c.arm, c.base) == ("specpilot", "stock")


def _whole(arms: Mapping[str, Sequence[BlockResult]]) -> tuple[State, str]:
    failed = {arm: sum(load.failed for b in blocks for load in b.loads) for arm, blocks in arms.items()}
    problems = [p for b in arms["specpilot"] for p in b.problems]
    if problems:
        return "regression", "; ".join(dict.fromkeys(problems))
    if failed["specpilot"] > max(failed["ar"], failed["stock"]):
        return "regression", f"{failed['specpilot']} requests failed, {failed['stock']} on stock, {failed['ar']} on AR"
    return "ok", f"all blocks, {failed['specpilot']} failed requests"


def _speed(c: Comparison, config: Config) -> tuple[State, str]:
    r, floor = c.ratio, 1 - config.rules.slower_than_stock
    what = f"{r.value:.3f}x stock at {c.concurrency} in flight"
    if not r.known:
        return "not judged", f"{what}; one launch says nothing about noise: set rounds to 2 or more"
    what += f", {config.rules.confidence:.0%} interval {r.low:.3f} to {r.high:.3f} of {r.rounds} launch pairs"
    if r.high < floor:
        return "regression", f"{what}: slower than {floor:.3f}x beyond noise"
    return "ok", what


def _accept(arms: Mapping[str, Sequence[BlockResult]], config: Config) -> Iterator[tuple[State, str]]:
    for load in arms["specpilot"][0].loads:
        pair = [_accept_at(arms[arm], load.concurrency) for arm in ("specpilot", "stock")]
        if any(math.isnan(value) for value in pair):
            yield "not judged", f"no verify steps at {load.concurrency} in flight"
            continue
        what = f"{pair[0]:.3f}, stock {pair[1]:.3f}, at {load.concurrency} in flight"
        low = pair[0] < pair[1] * (1 - config.rules.accept_length_drop)
        yield ("regression" if low else "ok"), what


def _accept_at(blocks: Sequence[BlockResult], concurrency: int) -> float:
    loads = [load for b in blocks if (load := b.load(concurrency)) is not None]
    lengths = [load.accept_length for load in loads if load.accept_length is not None]
    return math.fsum(lengths) / len(lengths) if lengths else math.nan


def _forcing(arms: Mapping[str, Sequence[BlockResult]], config: Config, deployment: Deployment) -> tuple[State, str]:
    if config.forcing is None:
        return "not judged", "not configured (`forcing:`)"
    reports = [next((b.forcing for b in arms[arm] if b.forcing), None) for arm in ("stock", "specpilot")]
    if reports[0] is None or reports[1] is None:
        return "not judged", "the plugin or stock was not forced"
    stock, ours = (ForcingReport.from_json(report) for report in reports if report is not None)
    # The margins are each server's own: a night looks for accidents, the loop's judge for cheating.
    verdict = compare(stock, ours, dtype=deployment.dtype, max_excess=config.rules.forcing_excess)
    what = f"mismatch rate {verdict.candidate_rate:.2%}, stock {verdict.stock_rate:.2%}; {verdict.reason}"
    if verdict.accepted:
        return "ok", what
    rejected = ours.failed or verdict.beyond_tie or verdict.excess > verdict.max_excess
    return ("regression" if rejected else "not judged"), what


def _accuracy(arms: Mapping[str, Sequence[BlockResult]], config: Config) -> Iterator[tuple[str, tuple[State, str]]]:
    ours, base = (arms[arm][0].accuracy if arms[arm] else {} for arm in ("specpilot", "ar"))
    for suite, answers in ours.items():
        other = base.get(suite, {})
        both = answers.keys() & other.keys()
        lost = sum(other[i] and not answers[i] for i in both)
        won = sum(answers[i] and not other[i] for i in both)
        pvalue = sign_test(lost, won)
        what = f"{sum(answers.values())} of {len(answers)} right, AR {sum(other.values())} of {len(other)}"
        what += f"; {lost} lost, {won} won against AR, p = {pvalue:.3f}"
        yield suite, (("regression" if pvalue < config.rules.accuracy_alpha else "ok"), what)


def sign_test(lost: int, won: int) -> float:
    """Return the one-sided probability of at least `lost` of `lost + won` changed items being losses by chance."""
    if not lost:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(lost, lost + won, 0.5, alternative="greater").pvalue)


def _history(series: Sequence[Series], rules: ChangePoints) -> Iterator[tuple[State, str]]:
    longest = max((len(s.points) for s in series), default=0)
    judged = (*_JUDGED, "tok_s.specpilot", "itl_p99_ms.specpilot") if rules.absolute_speed else _JUDGED
    bad = False
    for s in series:
        if not s.changes or s.changes[-1].index < len(s.points) - rules.recent_runs:
            continue
        change, better = s.changes[-1], _BETTER.get(s.metric.partition(".")[0], 0)
        what = f"{s.metric} {change.before:.4g} -> {change.after:.4g} ({change.relative:+.1%}) since run "
        what += f"{s.points[change.index].run} ({s.points[change.index].code}), p = {change.pvalue:.1g}"
        worse = change.relative * better < 0 and s.metric.startswith(judged)
        bad |= worse
        yield ("regression" if worse else "note"), what
    if not bad:
        yield (
            "ok",
            f"no bad change point over {longest} run(s)" + ("; fewer than 4 cannot show one" if longest < 4 else ""),
        )
