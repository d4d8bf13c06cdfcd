"""Real servers on the CPU reference platform, in FP32 so that answers can be compared token by token.

A server's start costs more than most tests, so AR and stock DFLASH are started once each, answer everything
that later tests compare with, and are stopped; the plugin's server then runs for the whole module.
"""

from __future__ import annotations

import pytest
from serving import COMMON, CONCURRENCY, MAX_NEW_TOKENS, REQUESTS, START_TIMEOUT_S, Outcome

from specpilot_sglang.eval.presets import ar_args, dflash_args, specpilot_args
from specpilot_sglang.eval.prompts import encode, load_tokenizer
from specpilot_sglang.eval.recording import greedy, record
from specpilot_sglang.eval.records import Run
from specpilot_sglang.eval.servers import Server
from specpilot_sglang.eval.suites import load


@pytest.fixture(scope="session")
def prompts(smollm2):
    tokenizer = load_tokenizer(smollm2)
    share = -(-REQUESTS // 3)
    items = [i for suite in ("gsm8k", "humaneval", "mt-bench") for i in load(suite, limit=share)]
    return encode(items, tokenizer)[:REQUESTS]


@pytest.fixture(scope="session")
def reference(smollm2, prompts) -> Run:
    """AR's answers at the same concurrency."""
    args = [*ar_args(smollm2, dtype="float32"), *COMMON]
    with Server(args, name="ar", start_timeout_s=START_TIMEOUT_S) as server:
        return record(server.client, prompts, greedy(MAX_NEW_TOKENS), concurrency=CONCURRENCY)


@pytest.fixture(scope="session")
def stock(smollm2, drafter) -> Outcome:
    """What stock DFLASH does with each sampling feature."""
    args = [*dflash_args(smollm2, drafter, dtype="float32"), *COMMON]
    with Server(args, name="dflash", start_timeout_s=START_TIMEOUT_S) as server:
        return Outcome().ask(server)


@pytest.fixture(scope="module")
def plugin(reference, stock, smollm2, drafter, tmp_path_factory):
    """The plugin's server, under SGLang's strict memory check, started after the other two have gone."""
    args = [*specpilot_args(smollm2, drafter, None, dtype="float32"), *COMMON, "--enable-metrics"]
    log = tmp_path_factory.mktemp("log") / "plugin.log"
    env = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}
    with Server(args, name="specpilot", env=env, log=log, start_timeout_s=START_TIMEOUT_S) as server:
        yield server
