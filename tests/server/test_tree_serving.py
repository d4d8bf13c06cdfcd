"""The tree overlay's server answers what plain decoding answers, and accepts more a verify pass than a chain."""

from __future__ import annotations

import json

import jsonschema
import pytest
from serving import COMMON, CONCURRENCY, MAX_NEW_TOKENS, QUESTION, SCHEMA, START_TIMEOUT_S, attempt_logprobs, many

from specpilot_sglang.eval.acceptance import by_suite
from specpilot_sglang.eval.forcing import force
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.presets import specpilot_args
from specpilot_sglang.eval.recording import greedy, record
from specpilot_sglang.eval.records import Run
from specpilot_sglang.eval.servers import Server

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def tree(reference, smollm2, drafter, tmp_path_factory):
    args = [*specpilot_args(smollm2, drafter, "smollm2-135m-dflash-cpu-tree", dtype="float32"), *COMMON]
    log = tmp_path_factory.mktemp("log") / "tree.log"
    env = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}
    with Server(args, name="tree", env=env, log=log, start_timeout_s=START_TIMEOUT_S) as server:
        yield server


@pytest.fixture(scope="module")
def some(prompts, reference):
    """Every third prompt with AR's answer: a CPU computes every row of a tree, so prompts are dear here."""
    chosen = prompts[::3]
    ids = {p.id for p in chosen}
    return chosen, Run(reference.sampling, [r for r in reference.requests if r.id in ids], reference.about)


@pytest.fixture(scope="module")
def cold(tree, some):
    """The prompts once, eight at a time, before anything of them is cached."""
    run = record(tree.client, some[0], greedy(MAX_NEW_TOKENS), concurrency=CONCURRENCY)
    assert [r.error for r in run.requests if r.error] == []
    return run


def _length(requests):
    return sum(len(r.output_ids) for r in requests) / sum(r.verify_steps for r in requests)


def test_greedy_fp32_answers_equal_plain_decoding(tree, cold, some):
    reference = some[1]
    verdicts = force(reference, tree.client, concurrency=CONCURRENCY, first_pass={r.id: r for r in cold.requests})
    report = ForcingReport(verdicts)
    assert report.failed == []
    assert report.counted == []
    assert report.positions == sum(len(r.output_ids) for r in reference.requests)


def test_accept_length_is_that_of_a_tree(cold):
    """Stock's chain accepts about 3.1, 2.9 and 1.7 on the first prompts of these suites."""
    lengths = {a.suite: a.length for a in by_suite(cold.requests)}
    assert lengths["gsm8k"] > 3.5, lengths
    assert min(lengths.values()) > 1.9, lengths


def test_accept_length_is_the_same_on_cached_prefixes_and_alone(tree, cold, some):
    few = some[0][:6]
    first = [r for r in cold.requests if r.id in {p.id for p in few}]
    again = record(tree.client, few, greedy(MAX_NEW_TOKENS), concurrency=1)
    assert [r.output_ids for r in again.requests] == [r.output_ids for r in first]
    assert _length(again.requests) == pytest.approx(_length(first), rel=0.05), "draft context is missing somewhere"


def test_attestation_counts_the_hot_path(tree, cold):
    rank = tree.client.attestation()["ranks"][0]
    assert rank["mechanisms"] == {
        "best-first-tree": {"budget": 32, "max_depth": None, "gated_delta": False, "call_budget": None}
    }
    hits = rank["hits"]
    assert hits["tree_steps"] > 0
    assert hits["tree_nodes_verified"] >= 32 * hits["tree_steps"]


def test_json_schema_through_trees_is_always_valid(tree):
    bodies = [
        {
            "text": f"Describe person number {i} as JSON:",
            "sampling_params": {"temperature": 0.8 if i % 2 else 0, "max_new_tokens": 160, "json_schema": SCHEMA},
        }
        for i in range(4)
    ]
    for response in many(tree, bodies):
        answer = response.json()
        assert answer["meta_info"]["finish_reason"]["type"] == "stop", answer
        jsonschema.validate(json.loads(answer["text"]), json.loads(SCHEMA))


def test_options_through_trees(tree, stock):
    stopped = tree.generate(text=QUESTION, sampling={"temperature": 0, "max_new_tokens": 60, "stop": ["."]})
    assert (stopped.output_ids, stopped.finish) == stock.answers["stop string"]
    assert attempt_logprobs(tree) == stock.answers["logprobs"]
    assert tree.generate(text=QUESTION, sampling={"temperature": 0, "max_new_tokens": 1}).output_ids
    sampled = tree.generate(text=QUESTION, sampling={"temperature": 0.8, "top_p": 0.9, "max_new_tokens": 20})
    assert sampled.output_ids
    assert "leak" not in tree.log.read_text().lower()
