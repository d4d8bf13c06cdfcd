"""A runner that measures nothing: figures to order, and deaths to order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.forcing import Mismatch, Verdict
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.nightly.block import BlockResult, LoadFigures, SuiteFigures
from specpilot_sglang.eval.nightly.config import Config
from specpilot_sglang.eval.nightly.plan import BlockKey
from specpilot_sglang.eval.nightly.run import BlockSpec

SPEED = {"ar": 40.0, "stock": 80.0, "specpilot": 100.0}
POSITIONS = 1000


def config(**changes) -> Config:
    base = {
        "version": 1,
        "name": "fake",
        "deployments": [{"name": "small"}],
        "load": {"suites": {"gsm8k": 2}, "max_new_tokens": 64},
        "rounds": 2,
        "forcing": {"suites": {"gsm8k": 2}},
        "accuracy": {"suites": {"gsm8k": 20}},
    }
    return Config.model_validate({**base, **changes})


@dataclass
class Fake:
    """See `run.Runner`. `speed` scales an arm's tok/s, `accept` its accept length; `before` is told of each block."""

    speed: dict[str, float] = field(default_factory=dict)
    accept: dict[str, float] = field(default_factory=dict)
    mismatches: dict[str, int] = field(default_factory=dict)
    margin: float = 0.01
    right: dict[str, int] = field(default_factory=dict)
    failing: dict[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    noise: float = 0.005
    drift: float = 0.0
    seed: int = 0
    before: Callable[[BlockKey], None] = lambda key: None
    seen: list[BlockKey] = field(default_factory=list)

    def __call__(self, spec: BlockSpec, folder: Path) -> BlockResult:
        key = spec.key
        self.before(key)
        self.seen.append(key)
        if self.failing.get(key.arm, 0) > 0:
            self.failing[key.arm] -= 1
            raise SpecPilotError("the server ended with exit code 1", where=folder)
        if key.arm == "ar" and spec.first:
            (folder / "answers.jsonl").write_text("reference\n")
        elif spec.first:
            assert spec.reference is not None
            assert spec.reference.read_text() == "reference\n"
        first = spec.first
        return BlockResult(
            key=key,
            command=("python", "-m", "server", key.arm),
            start_s=3.0,
            loads=tuple(self.load(key, c) for c in spec.config.load.concurrency),
            memory={"rss": 2.0 * 2**30, "weights": 0.3 * 2**30},
            accuracy={"gsm8k": {f"gsm8k/{i}": i < self.right.get(key.arm, 12) for i in range(20)}} if first else {},
            forcing=self.forcing(key.arm) if first and key.arm != "ar" else None,
            accept={"gsm8k": {"tokens": 300, "steps": 100}} if first and key.arm != "ar" else {},
            histogram=(30, 20, 15, 10, 10, 5, 5, 5) if first and key.arm != "ar" else (),
            reference="answers.jsonl" if first and key.arm == "ar" else "",
            problems=self.problems if key.arm == "specpilot" else (),
            environment={"gpu": None},
        )

    def load(self, key: BlockKey, concurrency: int) -> LoadFigures:
        rng = random.Random(f"{self.seed} {key} {concurrency}")
        luck = (1 + rng.gauss(0, self.noise)) * (1 + self.drift * key.round)
        speed = SPEED[key.arm] * self.speed.get(key.arm, 1.0) * luck
        tokens = 128
        seconds = tokens / speed
        length = None if key.arm == "ar" else 3.2 * self.accept.get(key.arm, 1.0)
        steps = None if length is None else round(tokens / length)
        suites = {"gsm8k": SuiteFigures(2, tokens, seconds, 0.1 * seconds)}
        return LoadFigures(concurrency, speed, seconds, tokens, 0, length, steps, 0.1, 0.2, 0.01, 0.03, suites)

    def forcing(self, arm: str) -> dict:
        wrong = [Mismatch("r0", i, 5, 6, self.margin, False) for i in range(self.mismatches.get(arm, 0))]
        return ForcingReport([Verdict("r0", "gsm8k", POSITIONS, 1, wrong), Verdict("r1", "gsm8k", 50, 1)]).to_json()


class Quiet:
    """A watcher that keeps what it hears."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def block(self, key, number, total, state) -> None:
        self.lines.append(f"{key.label} {state}")

    def say(self, line) -> None:
        self.lines.append(line)
