"""Trees on a CUDA server: near plain decoding's answers, longer accepted paths than a chain, graphs replayed."""

from __future__ import annotations

import pytest

from specpilot_sglang.eval.acceptance import by_suite
from specpilot_sglang.eval.forcing import force
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.presets import ar_args, dflash_args, specpilot_args
from specpilot_sglang.eval.prompts import encode, load_tokenizer
from specpilot_sglang.eval.recording import greedy, record
from specpilot_sglang.eval.servers import Server
from specpilot_sglang.eval.suites import load

pytestmark = [pytest.mark.gpu, pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1200)]

QUICK = ["--disable-prefill-cuda-graph", "--max-total-tokens", "16384"]
#: BF16 steps of this model's logits are 0.125; a row of a tree rounds otherwise than a row of its own.
NEAR_TIE = 0.5


@pytest.fixture(scope="module")
def prompts(smollm2):
    items = [i for suite in ("gsm8k", "humaneval") for i in load(suite, limit=6)]
    return encode(items, load_tokenizer(smollm2))


def answers(args, prompts, name, check=None):
    with Server([*args, *QUICK], name=name, start_timeout_s=300) as server:
        run = record(server.client, prompts, greedy(120), concurrency=8)
        return (run, check(server, run)) if check else run


@pytest.fixture(scope="module")
def reference(smollm2, prompts):
    return answers(ar_args(smollm2), prompts, "ar")


@pytest.fixture(scope="module")
def chain(smollm2, drafter, prompts):
    return answers(dflash_args(smollm2, drafter), prompts, "chain")


@pytest.mark.parametrize("extra", [[], ["--attention-backend", "triton"], ["--page-size", "16"]])
def test_trees_answer_as_plain_decoding_up_to_near_ties(smollm2, drafter, prompts, reference, chain, extra):
    def check(server, run):
        verdicts = force(reference, server.client, concurrency=8, first_pass={r.id: r for r in run.requests})
        return ForcingReport(verdicts).to_json(), server.client.attestation()["ranks"][0]["hits"]

    args = [*specpilot_args(smollm2, drafter, "smollm2-135m-dflash-cuda-tree"), *extra]
    run, (forced, hits) = answers(args, prompts, "tree", check)
    assert max((m["margin"] for m in forced["mismatches"]), default=0.0) < NEAR_TIE
    assert forced["mismatches_total"] < 0.02 * forced["positions"]
    assert hits["tree_graph_replays"] == hits["tree_steps"] > 0
    longer = {a.suite: a.length for a in by_suite(run.requests)}
    for suite in by_suite(chain.requests):
        assert longer[suite.suite] > 1.15 * suite.length
