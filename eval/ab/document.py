"""What an experiment found, as JSON values with provenance; the reports are written from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval import provenance
from specpilot_sglang.eval.ab.block import LATENCIES, Block
from specpilot_sglang.eval.ab.bounds import BCA_FROM, lower_bca, sign_flip_p
from specpilot_sglang.eval.ab.config import Settings
from specpilot_sglang.eval.ab.durable import finite
from specpilot_sglang.eval.ab.failures import CandidateFailedError
from specpilot_sglang.eval.ab.journal import Journal
from specpilot_sglang.eval.ab.measure import Trial, judge_speed, log_ratios, noise_of
from specpilot_sglang.eval.ab.noise import Noise
from specpilot_sglang.eval.ab.rule import Rule, percent
from specpilot_sglang.eval.ab.run import Experiment

FORMAT = 1


def of_noise(noise: Noise, blocks: Sequence[Block], experiment: Experiment) -> dict[str, Any]:
    """Return the document of an A/A."""
    lines = [
        f"noise {noise.value:.3%} (mean {noise.spread.mean:+.3%}, standard deviation of a block {noise.spread.sd:.3%}, "
        f"95% of blocks within {noise.q95:.3%})",
        f"an A/B on this host must pass {percent(Rule().threshold(noise.value))}",
    ]
    return finite({"kind": "aa", "noise": noise.to_json(), **_common("A/A", lines, blocks, experiment.identity)})


def of_trial(trial: Trial, noise: Noise, experiment: Experiment, rule: Rule) -> dict[str, Any]:
    """Return the document of an A/B."""
    return _trial(trial, noise, experiment.identity, rule)


def _trial(trial: Trial, noise: Noise, identity: Mapping[str, Any], rule: Rule) -> dict[str, Any]:
    names = identity["incumbent"]["name"], identity["candidate"]["name"]
    ratios = log_ratios(trial.blocks, *names)
    decision = trial.decision
    beside = {
        "bca_lower_95": lower_bca(ratios),
        "bca_usable": len(ratios) >= BCA_FROM,
        "sign_flip_p": sign_flip_p(ratios),
    }
    lines = [
        f"{'ACCEPTED' if trial.accepted else 'REJECTED'}: {decision.reason}",
        f"gain {percent(decision.mean)}, lower bound {percent(decision.lower)} at {1 - decision.alpha:.1%} confidence, "
        f"needed {percent(decision.threshold)} = {rule.min_gain:.1%} + {rule.noise_factor:g} x noise {noise.value:.3%}",
        f"beside it: BCa bound {percent(beside['bca_lower_95'])}"
        + ("" if beside["bca_usable"] else f" (too narrow below {BCA_FROM} blocks)")
        + f", sign-flip p {beside['sign_flip_p']:.4f}",
        *(check.reason for check in trial.latencies),
        "speed only: whether the answers are unchanged is the judge's part",
    ]
    common = _common("A/B", lines, trial.blocks, identity)
    settings = {"rule": vars(rule), "noise": noise.to_json(), "beside": beside}
    return finite({"kind": "ab", **trial.to_json(), **settings, **common})


def of_failure(error: CandidateFailedError, settings: Settings) -> dict[str, Any]:
    """Return the document of an A/B whose candidate could not be measured."""
    lines = ["REJECTED: the candidate failed", *error.reasons]
    arms = [a.name for a in (settings.incumbent, settings.candidate) if a]
    empty = {"title": "A/B", "arms": arms, "blocks": [], "lines": lines, "failures": list(error.reasons)}
    about = {"provenance": provenance.collect(seed=settings.seed), "identity": settings.model_dump(mode="json")}
    return finite({"format": FORMAT, "kind": "ab", "accepted": False, **empty, **about})


def again(root: Path) -> dict[str, Any]:
    """Return the document of an experiment that was run before, from its blocks.

    Raises:
        SpecPilotError: there is none, or it was not finished.
    """
    from specpilot_sglang.eval.ab.report import read

    journal, former = Journal(root), read(root)
    blocks, identity = journal.blocks(), journal.identity()
    names = identity["incumbent"]["name"], identity["candidate"]["name"]
    if former["kind"] == "aa":
        about = identity["about"]
        noise = noise_of(blocks, *names, host=about["host"], regime=about["regime"])
        return {**former, "noise": noise.to_json()}
    if not blocks:
        raise SpecPilotError("no finished block", where=root, fix="run it first")
    rule = former["rule"]
    rule = Rule(**{**rule, "looks": tuple(rule["looks"]), "alphas": tuple(rule["alphas"])})
    noise = Noise.from_json(former["noise"])
    found = _trial(judge_speed(blocks, *names, noise, rule), noise, identity, rule)
    return {**found, "provenance": {**former["provenance"], "reported_again": found["provenance"]}}


def _common(title: str, lines: list[str], blocks: Sequence[Block], identity: Mapping[str, Any]) -> dict[str, Any]:
    names = [identity["incumbent"]["name"], identity["candidate"]["name"]]
    return {
        "format": FORMAT,
        "title": f"{title}: {names[0]} against {names[1]}",
        "arms": names,
        "lines": lines,
        "blocks": [_row(block, *names) for block in blocks],
        "failures": Journal(blocks[0].root).failures() if blocks else [],
        "identity": dict(identity),
        "provenance": provenance.collect(_attestation(blocks, names), seed=identity["seed"]),
    }


def _row(block: Block, incumbent: str, candidate: str) -> dict[str, Any]:
    return {
        "index": block.index,
        "order": list(block.runs),
        "attempt": block.attempt,
        "tok_s": {name: load.output_tok_s for name, load in block.loads.items()},
        "accept_length": {name: load.accept_length for name, load in block.loads.items()},
        "tokens": {name: load.output_tokens for name, load in block.loads.items()},
        "start_s": {name: run.start_s for name, run in block.runs.items()},
        "load_average": {name: load.environment.get("load_average") for name, load in block.loads.items()},
        "log_ratio": block.log_ratio(incumbent, candidate),
        "latency_log_ratios": {m: block.latency_log_ratio(m, incumbent, candidate) for m in LATENCIES},
        "loads": {name: {"file": run.load_file, "sha256": run.load_sha256} for name, run in block.runs.items()},
    }


def _attestation(blocks: Sequence[Block], names: Sequence[str]) -> dict[str, Any] | None:
    found = [b.loads[name].attestation_after for b in blocks for name in reversed(names)]
    return next((a for a in found if a), None)


def shown(log_ratio: float | None) -> str:
    """Return a log ratio as a percentage for people, a dash when there is none."""
    return "–" if log_ratio is None or math.isnan(log_ratio) else percent(log_ratio)
