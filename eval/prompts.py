"""Turns suite items into prompt token ids with the target's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.suites import Item


@dataclass(frozen=True)
class Prompt:
    """A prompt ready to send: `ids` are its token ids, chat template and generation prompt included."""

    id: str
    suite: str
    ids: list[int]


def load_tokenizer(model: Path | str) -> Any:
    """Load the tokenizer of a local Hugging Face folder; raise `SpecPilotError` when there is none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(model))
    except (OSError, ValueError, KeyError) as exc:
        reason = " ".join(str(exc).split())[:200]
        raise SpecPilotError(
            f"cannot load a tokenizer ({reason})", where=model, fix="give a local Hugging Face folder with --model"
        ) from exc


def encode(items: Sequence[Item], tokenizer: Any, *, thinking: bool | None = None) -> list[Prompt]:
    """Return the prompts of `items`: one user turn under the chat template, plain text if there is no template.

    Args:
        items: suite items.
        tokenizer: the target's.
        thinking: the template's `enable_thinking`; None leaves it to the template.
    """
    extra = {} if thinking is None else {"enable_thinking": thinking}
    return [Prompt(item.id, item.suite, _ids(item, tokenizer, extra)) for item in items]


def _ids(item: Item, tokenizer: Any, extra: dict[str, Any]) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        return list(tokenizer(item.text)["input_ids"])
    # Render first: the return type of a tokenising apply_chat_template differs between transformers releases.
    text = tokenizer.apply_chat_template(item.messages, add_generation_prompt=True, tokenize=False, **extra)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
