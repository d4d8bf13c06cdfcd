"""All gates over one trial's evidence, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.judge.evidence import Evidence
from specpilot_sglang.loop.judge.gates_answers import errors_gate, forcing_gate, lengths_gate, timed_gate
from specpilot_sglang.loop.judge.gates_gain import confirmation_gate, selection_gate
from specpilot_sglang.loop.judge.gates_path import attestation_gate, hot_path_gate, steps_gate
from specpilot_sglang.loop.judge.gates_time import caches_gate, prompts_gate, window_gate
from specpilot_sglang.loop.judge.gates_trust import lossless_gate, pins_gate, refusals_gate
from specpilot_sglang.loop.judge.verdict import GateResult, Status, Verdict, failed

Gate = Callable[[Evidence], list[GateResult]]

GATES: tuple[Gate, ...] = (
    pins_gate,
    refusals_gate,
    lossless_gate,
    window_gate,
    caches_gate,
    prompts_gate,
    attestation_gate,
    hot_path_gate,
    steps_gate,
    forcing_gate,
    timed_gate,
    lengths_gate,
    errors_gate,
    selection_gate,
    confirmation_gate,
)


def judge(evidence: Evidence, gates: Sequence[Gate] = GATES) -> Verdict:
    """Return the verdict. Every gate is asked, so that all reasons are on record; one that cannot decide fails.

    Args:
        evidence: what was recorded; `evidence.load_evidence` reads it from a folder.
        gates: for tests of single gates.
    """
    return Verdict.of([result for gate in gates for result in _ask(gate, evidence)])


def _ask(gate: Gate, evidence: Evidence) -> list[GateResult]:
    try:
        return gate(evidence)
    except SpecPilotError as exc:
        # Evidence that cannot be read, or was changed after it was written, promotes nothing.
        status = Status.TAMPERED if "changed afterwards" in exc.what else Status.INCOMPLETE
        return [failed(gate.__name__.removesuffix("_gate"), status, [exc.line()])]
