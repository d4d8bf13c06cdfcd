"""Were the answers of the timed runs themselves the target's? Scored token by token on the AR server, by prefill.

Token forcing asks questions of its own. A candidate that answers wrongly only while it is timed would pass it; the
texts that the benchmark client received are therefore scored as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specpilot_sglang.eval.ab.block import Block
from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.margins import top_tokens
from specpilot_sglang.eval.prompts import encode
from specpilot_sglang.eval.suites import Item


@dataclass(frozen=True)
class TimedScore:
    """One arm's timed answers: `positions` scored tokens, of which the AR server clearly prefers another at `clear`."""

    positions: int
    clear: int

    @property
    def rate(self) -> float:
        """Share of clearly wrong tokens; 0 without positions."""
        return self.clear / self.positions if self.positions else 0.0


def score_timed(
    block: Block, items: Sequence[Item], *, judge: Client, tokenizer: Any, near_tie: float
) -> dict[str, TimedScore]:
    """Return the score of each arm's answers in one block.

    Args:
        block: a finished block.
        items: its prompts.
        judge: AR server of the same target.
        tokenizer: the target's; texts are tokenised anew, which splits a few words otherwise than the server did,
            in both arms alike.
        near_tie: nats; a token that trails the best by less may be rounding.
    """
    prompts = {prompt.id: prompt.ids for prompt in encode(items, tokenizer)}
    scores = {}
    for name, load in block.loads.items():
        positions = clear = 0
        for sample in load.good:
            ids = tokenizer(sample.text, add_special_tokens=False)["input_ids"]
            if not ids:
                continue
            leads = [lead for _, lead in top_tokens(judge, prompts[sample.id], ids)]
            positions, clear = positions + len(leads), clear + sum(lead >= near_tie for lead in leads)
        scores[name] = TimedScore(positions, clear)
    return scores


def to_json(scores: Mapping[str, TimedScore]) -> dict[str, Any]:
    """Return the scores as JSON values."""
    return {name: asdict(score) for name, score in scores.items()}
