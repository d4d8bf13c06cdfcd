"""Turns one row of a suite, from whichever source, into an item. Field names are those of the sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specpilot_sglang.eval.suites.item import Item

Row = Mapping[str, Any]
#: (row, its index in the source) -> item, None to leave the row out. Raises KeyError and the like on a foreign row.
ToItem = Callable[[Row, int], Item | None]

#: Suite that keeps `math`'s package rows from other competitions out.
_MATH_SOURCE = "MATH"


def gsm8k(row: Row, index: int) -> Item:
    """GSM8K: `question`, and `answer` that ends in `#### NUMBER`."""
    answer = str(row["answer"]).rpartition("####")[2].strip()
    return Item(f"gsm8k/{index}", "gsm8k", row["question"], answer)


def math(row: Row, index: int) -> Item | None:
    """MATH: the hub's MATH-500 (`problem`, `unique_id`), or MMATH's English file (`question`, `data_source`, `gid`)."""
    if "problem" in row:
        return Item(f"math/{row.get('unique_id', index)}", "math", row["problem"], str(row["answer"]))
    if not str(row["data_source"]).startswith(_MATH_SOURCE):
        return None
    return Item(f"math/{row['gid']}", "math", row["question"], str(row["answer"]))


def humaneval(row: Row, index: int) -> Item:
    """HumanEval: the prompt is the function's head, which a solution continues; `test` defines `check(candidate)`."""
    head = row["prompt"]
    name = row["entry_point"]
    return Item(row["task_id"], "humaneval", head, row["canonical_solution"], row["test"], name, stem=head)


def mbpp(row: Row, index: int) -> Item:
    """MBPP: a sentence and three assertions; `prompt` and `test_imports` (sanitized set) or `text` (full set)."""
    setup = row["test_imports"] if "test_imports" in row else [row.get("test_setup_code") or ""]
    tests = "\n".join([*setup, *row["test_list"]]).strip()
    sentence = str(row["prompt"] if "prompt" in row else row["text"]).strip()
    text = f"{sentence} Your code should pass these tests:\n\n" + "\n".join(row["test_list"])
    return Item(f"mbpp/{row['task_id']}", "mbpp", text, row["code"], tests)


def mt_bench(row: Row, index: int) -> Item:
    """MT-Bench: first of two turns; the package's `turns` and `question_id`, or the hub's `prompt` and `prompt_id`."""
    turns = row["turns"] if "turns" in row else row["prompt"]
    name = row["question_id"] if "question_id" in row else row["prompt_id"]
    return Item(f"mt-bench/{name}", "mt-bench", turns[0], ((row.get("reference") or [""])[0]) or "")


def livecodebench(row: Row, index: int) -> Item:
    """LiveCodeBench: problem text, and starter code where the problem has one. Its hidden tests are not read."""
    starter = f"\n\nStart from this code:\n\n{row['starter_code']}" if row.get("starter_code") else ""
    return Item(f"livecodebench/{row['question_id']}", "livecodebench", row["question_content"] + starter)


def aime_2024(row: Row, index: int) -> Item | None:
    """AIME 2024: the hub's `problem`, or MMATH's English file."""
    if "problem" in row:
        return Item(f"aime-2024/{row.get('id', index)}", "aime-2024", row["problem"], str(row["answer"]))
    if row["data_source"] != "AIME2024":
        return None
    return Item(f"aime-2024/{row['gid']}", "aime-2024", row["question"], str(row["answer"]))


def aime_2025(row: Row, index: int) -> Item:
    """AIME 2025: `problem` (hub) or `question` (package), and an integer `answer`."""
    question = row["problem"] if "problem" in row else row["question"]
    return Item(f"aime-2025/{index}", "aime-2025", question, str(row["answer"]))


def plain(suite: str) -> ToItem:
    """Return the form of a user's own JSON lines: a prompt, and optionally an id and an answer."""

    def to_item(row: Row, index: int) -> Item:
        text = next((row[key] for key in ("text", "prompt", "question") if isinstance(row.get(key), str)), None)
        if not text:
            raise KeyError("text, prompt or question")
        answer = next((str(row[key]) for key in ("reference", "answer") if row.get(key) is not None), "")
        return Item(f"{suite}/{row.get('id', index)}", suite, text, answer)

    return to_item
