"""Each option of a request does through trees, alone and beside others, what it does in plain decoding."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from specpilot_sglang.eval.parallel import run_all
from specpilot_sglang.eval.presets import ar_args, specpilot_args
from specpilot_sglang.eval.servers import Server

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]

START_S = 400.0
STORY = "Once upon a time there was a small cat that"
LONG = " ".join(f"The number {i} comes after {i - 1}." for i in range(1, 90))  # 960 tokens
SCHEMA = '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"]}'
#: Text and sampling parameters; greedy where nothing else is said.
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": (STORY, {}),
    "stop strings": (STORY, {"stop": [" on a", "forest"], "no_stop_trim": True}),
    "a stop pattern": (STORY, {"stop_regex": ["w[a-z]+d"]}),
    "stop tokens": (STORY, {"stop_token_ids": [30, 28], "min_new_tokens": 9}),
    "one token": (STORY, {"max_new_tokens": 1}),
    "no token": (STORY, {"max_new_tokens": 0}),
    "three answers": (STORY, {"n": 3}),
    "beyond the end": ("User: Say ok.\nAssistant: ok<|im_end|>", {"ignore_eos": True, "max_new_tokens": 90}),
    "at least 20 tokens": ("User: Say ok.\nAssistant: ok<|im_end|>", {"min_new_tokens": 20}),
    "frequency": (STORY, {"frequency_penalty": 0.8}),
    "presence": (STORY, {"presence_penalty": 1.0}),
    "repetition": (STORY, {"repetition_penalty": 1.3}),
    "two penalties": (STORY, {"frequency_penalty": 0.3, "presence_penalty": -0.4}),
    "biases": (STORY, {"logit_bias": {"28": -100, "198": 3}}),
    "the best token only": (STORY, {"temperature": 0.9, "top_k": 1}),
    "a schema": ("Describe person number 3 as JSON:", {"json_schema": SCHEMA}),
    "a schema and a penalty": ("Describe person number 3 as JSON:", {"json_schema": SCHEMA, "frequency_penalty": 0.2}),
    "a pattern": ("A phone number:", {"regex": "[0-9]{3}-[0-9]{4}-(aa|ab|bb)+x"}),
    "a grammar": ("Say it:", {"ebnf": 'root ::= ("hello" | "hullo") " " ("world" | "there") "!"'}),
    "the whole context": (LONG, {"max_new_tokens": 64, "ignore_eos": True}),
}
COMMON = ["--context-length", "1024", "--constrained-json-disable-any-whitespace"]


def ask(server: Server, name: str) -> list[tuple]:
    text, sampling = ASKED[name]
    body = {
        "text": text,
        "sampling_params": {"temperature": 0, "max_new_tokens": 40} | sampling,
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    answer = httpx.post(server.url + "/generate", json=body, timeout=300, trust_env=False).json()
    return [(a["output_ids"], a["text"], a["meta_info"]) for a in (answer if isinstance(answer, list) else [answer])]


def everything(args: list[str], env: dict[str, str]) -> tuple[dict, dict]:
    """Answers to all requests one by one, and eight at a time."""
    with Server([*args, *COMMON], name="options", env=env, start_timeout_s=START_S) as server:
        alone = {name: ask(server, name) for name in ASKED}
        return alone, dict(zip(ASKED, run_all(lambda name: ask(server, name), list(ASKED), 8), strict=True))


@pytest.fixture(scope="module")
def plain(smollm2):
    # With overlap, plain decoding itself penalises for a token one step late.
    return everything([*ar_args(smollm2, dtype="float32"), "--disable-overlap-schedule"], {})


@pytest.fixture(scope="module")
def tree(plain, smollm2, drafter):
    args = specpilot_args(smollm2, drafter, "smollm2-135m-dflash-cpu-tree", dtype="float32")
    return everything(args, {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"})


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
def test_option(plain, tree, name, together):
    expected, found = plain[together][name], tree[together][name]
    assert [f[:2] for f in found] == [e[:2] for e in expected]
    for (ids, _, ours), (_, _, theirs) in zip(found, expected, strict=True):
        assert ours["finish_reason"] == theirs["finish_reason"]
        for kind in ("output_token_logprobs", "output_top_logprobs"):
            # SGLang reports one for no token where it drafts.
            pairs = zip(*(flat(meta[kind][: len(ids)]) for meta in (ours, theirs)), strict=True)
            assert all(a[1] == b[1] and a[0] == pytest.approx(b[0], abs=1e-3) for a, b in pairs), kind


def flat(entries):
    """(log probability, token, ...) of each place, or of each of its best tokens."""
    return [pair for entry in entries for pair in (entry if isinstance(entry[0], list) else [entry])]


def test_penalties_and_biases_change_the_answer(plain):
    plainly, *changed = (plain[0][name][0][1] for name in ("nothing", "frequency", "presence", "repetition", "biases"))
    assert plainly not in changed
