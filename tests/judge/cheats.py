"""The cheating candidates: each is the toy server with one trick that makes it look faster than it is."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

from toy_server import END, ToyServer


class Honest(ToyServer):
    """A candidate whose verify step really takes less time."""

    step_s = 0.006


class Null(ToyServer):
    """A candidate that changes nothing."""


class CachedAnswers(ToyServer):
    """Keeps every answer and gives it again, whatever is flushed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.store: dict[tuple[int, ...], list[int]] = {}

    def known(self, prompt: Sequence[int]) -> list[int] | None:
        return self.store.get(tuple(prompt))

    def keep(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        self.store[tuple(prompt)] = list(output)


class RelaxedThreshold(Honest):
    """Accepts drafts at 90% of the target's probability, but only while requests run."""

    def threshold(self) -> float:
        return 0.9 if self.steps > 20 else 1.0


class EarlyStop(ToyServer):
    """Ends answers after a while as if the model had."""

    def token(self, prefix: Sequence[int]) -> int:
        return END if zlib.crc32(repr(tuple(prefix)).encode()) % 5 == 0 else super().token(prefix)


class ShorterOutputs(ToyServer):
    """Gives two thirds of the tokens that were asked for."""

    def limit(self, wanted: int) -> int:
        return max(1, wanted * 2 // 3)


class LossyWeights(Honest):
    """Rounds its weights: now and then another token wins, also against a clear lead."""

    def token(self, prefix: Sequence[int]) -> int:
        first, second, _ = self.choice(prefix)
        lossy = zlib.crc32(b"rounding" + repr(tuple(prefix)).encode()) % 33 == 0
        return second if lossy and first != END else first


class NearTies(Honest):
    """Emits the draft's token wherever the target's lead is so small that it could pass for rounding."""

    def token(self, prefix: Sequence[int]) -> int:
        first, second, lead = self.choice(prefix)
        return second if lead < 0.1 else first


class WorkBeforeTheClock(Honest):
    """Does its work before the timed run: while it is warmed up."""

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("text", "").startswith("Warm-up"):
            time.sleep(8.0)
        return super().generate(body)


class KeptPrefixes(ToyServer):
    """Ignores that its prefix cache is to be emptied."""

    def flush(self) -> None:
        pass


class NeverRan(Honest):
    """Attests an overlay whose code is never reached."""

    def counted(self) -> int:
        return 0


class MadeUpCounter(Honest):
    """Counts steps that the server's own figures do not know of."""

    def counted(self) -> int:
        return self.steps * 10


class Stock(Honest):
    """A stock server under the candidate's name: no attestation."""

    def attestation(self) -> dict[str, Any] | None:
        return None


class KnowsTheBenchmark(ToyServer):
    """Is fast on prompts it recognises."""

    public: ClassVar[set[tuple[int, ...]]] = set()

    def work(self, prompt: Sequence[int]) -> float:
        return self.step_s * (0.5 if tuple(prompt) in self.public else 1.0)


class InventedTokens(ToyServer):
    """Emits more tokens than its verify steps can: they never passed the target."""

    def decode(self, prompt: list[int], new: int, ignore_eos: bool = False) -> Any:
        chunks = super().decode(prompt, new, ignore_eos)
        yield next(chunks)
        steps = list(chunks)
        rest = [token for chunk, _ in steps for token in chunk]
        with self.lock:
            self.verify_calls -= len(steps) - len(rest) // 8
        yield rest, 0.02


class WrongWhileTimed(Honest):
    """Emits wrong tokens in chat completions, which the benchmark uses, and right ones elsewhere."""

    timed = False

    def chat(self, handler: Any, body: dict[str, Any]) -> None:
        self.timed = True
        try:
            super().chat(handler, body)
        finally:
            self.timed = False

    def token(self, prefix: Sequence[int]) -> int:
        first, second, _ = self.choice(prefix)
        wrong = self.timed and zlib.crc32(b"timed" + repr(tuple(prefix)).encode()) % 12 == 0
        return second if wrong and first != END else first
