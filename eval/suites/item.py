"""One prompt of a suite, with what is needed to score its answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """One prompt.

    Attributes:
        id: unique inside all suites, such as `gsm8k/1000`.
        suite: suite name.
        text: the user's turn, without chat template.
        reference: the suite's own answer, empty where it has none.
        tests: Python source that checks a solution, empty where there is none.
        entry_point: function that `tests` checks; empty when `tests` calls it by itself.
        stem: Python source that a solution may continue instead of repeating it.
    """

    id: str
    suite: str
    text: str
    reference: str = ""
    tests: str = ""
    entry_point: str = ""
    stem: str = ""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a one-turn chat."""
        return [{"role": "user", "content": self.text}]
