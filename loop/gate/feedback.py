"""What an agent hears: status and rounded public figures, never more.

Exact figures would let an agent climb noise, and the judge's reasons name sealed prompts, gates and thresholds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

#: Verdicts that an agent hears as they are; every other one is `rejected`.
_TOLD = {"accepted", "no_gain", "failed", "wrong_answers", "slow_tail", "not_confirmed"}
_CONTROL = re.compile(r"[^\x20-\x7e]+")
#: Text that speaks to a reader instead of saying what was done.
_INJECTION = re.compile(
    r"(?i)\b(ignore|disregard|forget)\b.{0,40}\b(instruction|rule|previous|above|prompt|gate|judge)s?\b"
    r"|\b(system|assistant|developer|user)\s*(prompt|message|:)"
    r"|<\s*/?\s*(system|instructions?|tool|im_start|human|assistant)"
    r"|\byou (are|must|should|will) (now\s+)?(an?|the|accept|promote|approve|execute|run)\b"
    r"|\b(promote|accept|approve) (this|my)\b|\bas (the|an?) (judge|controller|administrator)\b"
    r"|https?://|\bcurl\b|\bBEGIN [A-Z ]*KEY\b"
)


def feedback(status: str, log_gain: float | None, gate_reasons: Sequence[str] = ()) -> dict[str, Any]:
    """Return what an agent may read about one of its candidates.

    Args:
        status: verdict's status, or `refused` by the gate.
        log_gain: mean log ratio on public prompts; rounded to half a percent.
        gate_reasons: the gate's reasons; they are about the agent's own text.
    """
    told = status if status in _TOLD or status == "refused" else "rejected"
    gain = None if log_gain is None or log_gain != log_gain else round(200 * log_gain) / 2
    return {"status": told, "public_gain_percent": gain, "gate": [clean(r, 200) for r in gate_reasons[:5]]}


def read_note(note: str) -> tuple[dict[str, Any], str]:
    """Return the fields of an agent's note that are kept, and why it was refused, if so.

    A note is a JSON object with `hypothesis`, `change` and `predicted_gain_percent`, or free text taken as the
    hypothesis. One that addresses its readers is dropped whole.
    """
    try:
        row = json.loads(note)
    except ValueError:
        row = {"hypothesis": note}
    if not isinstance(row, Mapping):
        row = {"hypothesis": str(row)}
    texts = {name: clean(str(row.get(name) or ""), 400) for name in ("hypothesis", "change")}
    predicted = row.get("predicted_gain_percent")
    number = float(predicted) if isinstance(predicted, int | float) and abs(predicted) < 1000 else None
    if any(_INJECTION.search(text) for text in texts.values()):
        return {"hypothesis": "", "change": "", "predicted_gain_percent": number}, "the note addresses its readers"
    return {**texts, "predicted_gain_percent": number}, ""


def clean(text: str, most: int) -> str:
    """Return one line of printable ASCII, at most `most` characters."""
    return " ".join(_CONTROL.sub(" ", text).split())[:most]
