"""One trial as a job: servers under test in a jail of their own, then the judge's whole procedure.

The job measures and leaves evidence. What counts is the controller's own verdict on that evidence, `rejudge`.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.durable import append_line
from specpilot_sglang.eval.ab.host import host_class, regime, stored_noise
from specpilot_sglang.eval.ab.measure import judge_speed
from specpilot_sglang.eval.ab.noise import Noise
from specpilot_sglang.eval.ab.run import launch_here
from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.load.run import Workload
from specpilot_sglang.eval.servers import Server
from specpilot_sglang.eval.suites import load
from specpilot_sglang.loop.controller.deployment import arms
from specpilot_sglang.loop.controller.settings import LoopSettings
from specpilot_sglang.loop.executors.canary import canary
from specpilot_sglang.loop.jail.server import jailed_server
from specpilot_sglang.loop.judge import Verdict, judge
from specpilot_sglang.loop.judge.evidence import Evidence, load_evidence
from specpilot_sglang.loop.judge.promotion import Trial, try_candidate

EVIDENCE = "evidence"
ENTRY = f"{__name__}:run_trial"
_NO_FIGURES = {"log_gain": None, "confirmed": None, "lower": None}


def run_trial(settings: dict[str, Any], incumbent: str, candidate: str, folder: str, state: str) -> dict[str, Any]:
    """Run one trial to its verdict; a trial that was killed goes on after its last block.

    Args:
        settings: the loop's, as JSON values.
        incumbent: folder of the incumbent's overlay.
        candidate: folder of the candidate's.
        folder: the trial's.
        state: the loop's folder, hidden from the servers.

    Raises:
        SpecPilotError: infrastructure failed, or the host is not in its usual state.
    """
    chosen, begin, place = LoopSettings.model_validate_json(json.dumps(settings)), time.monotonic(), Path(folder)
    if chosen.canary is not None:
        seen = canary(Path(state) / "canary.json")
        append_line(place / "canary.jsonl", seen.to_json())
        if not seen.quiet(chosen.canary):
            fix = "end other work on this host, or raise canary"
            raise SpecPilotError(f"this host is {seen.ratio:.2f} times slower than usual", where=seen.host, fix=fix)
    verdict = try_candidate(make_trial(chosen, Path(incumbent), Path(candidate), place, Path(state)))
    return {"status": verdict.status.value, "seconds": time.monotonic() - begin, "host": host_class()}


def make_trial(settings: LoopSettings, incumbent: Path, candidate: Path, folder: Path, state: Path) -> Trial:
    """Return the trial that the settings describe."""
    first, second, plain = arms(settings, incumbent, candidate)
    pool = [item for suite in settings.load.suites for item in load(suite)]
    asked = settings.load
    workload = Workload(
        tuple(pool[: asked.requests]),
        asked.max_new_tokens,
        asked.concurrency,
        settings.seed,
        asked.ignore_eos,
        thinking=asked.thinking,
    )

    def launch(arm: Arm, log: Path) -> Server:
        return jailed_server(arm, log, hidden=state) if settings.jail_servers else launch_here(arm, log)

    return Trial(
        first,
        second,
        plain,
        pool,
        workload,
        per_block=asked.requests,
        answers=settings.answers,
        noise=_noise(settings, workload),
        folder=folder / EVIDENCE,
        rule=settings.rule.rule(),
        seed=settings.seed,
        lock=Path(settings.host_lock) if settings.host_lock else None,
        launch=launch,
        together=settings.together,
    )


def rejudge(folder: Path) -> tuple[Verdict, dict[str, Any]]:
    """Return the verdict on a trial's evidence, judged in this process, and its public and confirmed gains."""
    evidence = load_evidence(folder / EVIDENCE)
    verdict = judge(evidence)
    try:
        return verdict, _figures(evidence)
    except SpecPilotError:  # a load that cannot be read, or was changed: the verdict says so
        return verdict, {**_NO_FIGURES, "blocks": len(evidence.blocks)}


def _figures(evidence: Evidence) -> dict[str, Any]:
    figures: dict[str, Any] = {**_NO_FIGURES, "blocks": len(evidence.blocks)}
    if evidence.noise is None:
        return figures
    names = evidence.incumbent, evidence.candidate
    parts = (("log_gain", evidence.selection, evidence.rule), ("confirmed", evidence.confirmation, evidence.confirming))
    for key, blocks, rule in parts:
        if blocks:
            decision = judge_speed(blocks, *names, evidence.noise, rule).decision
            figures |= {key: _finite(decision.mean), "lower": _finite(decision.lower)}
    return figures


def _noise(settings: LoopSettings, workload: Workload) -> Noise:
    if settings.noise is None:
        return stored_noise(host_class(), regime(workload, settings.together))
    path = Path(settings.noise)
    try:
        row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise SpecPilotError(f"cannot read the A/A ({exc})", where=path, fix="give report.json of an A/A") from exc
    return Noise.from_json(row["noise"] if isinstance(row.get("noise"), dict) else row)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
