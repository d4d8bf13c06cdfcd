"""The plugin's server does what a server must, and answers exactly what plain decoding answers."""

from __future__ import annotations

import json
import random
import time

import httpx
import jsonschema
import psutil
import pytest
from serving import (
    CONCURRENCY,
    FEATURES,
    MAX_NEW_TOKENS,
    QUESTION,
    SCHEMA,
    Outcome,
    many,
    post,
)

from specpilot_sglang.eval.acceptance import by_suite
from specpilot_sglang.eval.forcing import force
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.parallel import run_all
from specpilot_sglang.eval.recording import greedy, record

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]


def test_greedy_fp32_answers_equal_plain_decoding_at_concurrency_8(plugin, reference, prompts):
    run = record(plugin.client, prompts, greedy(MAX_NEW_TOKENS), concurrency=CONCURRENCY)
    assert [r.error for r in run.requests if r.error] == []
    verdicts = force(reference, plugin.client, concurrency=CONCURRENCY, first_pass={r.id: r for r in run.requests})
    report = ForcingReport(verdicts)
    assert report.failed == []
    assert report.counted == []
    assert report.positions == sum(len(r.output_ids) for r in reference.requests)
    assert all(a.length > 1.5 for a in by_suite(run.requests)), "the drafter's tokens are not accepted"


@pytest.fixture(scope="module")
def outcome(plugin) -> Outcome:
    return Outcome().ask(plugin)


@pytest.mark.parametrize("feature", [*FEATURES, "n=2", "logprobs"])
def test_sampling_feature_behaves_as_on_stock_dflash(outcome, stock, feature):
    assert outcome.answers[feature] == stock.answers[feature]
    assert outcome.answers[feature], "nothing came back"


def test_stop_string_ends_the_answer(outcome):
    ids, finish = outcome.answers["stop string"]
    assert finish == "stop"
    assert len(ids) < 60


def test_ignore_eos_runs_to_the_limit(outcome):
    ids, finish = outcome.answers["ignore_eos"]
    assert (len(ids), finish) == (120, "length")


def test_json_schema_through_drafted_blocks_is_always_valid(plugin):
    bodies = [
        {
            "text": f"Describe person number {i} as JSON:",
            "sampling_params": {"temperature": 0.8 if i % 2 else 0, "max_new_tokens": 160, "json_schema": SCHEMA},
        }
        for i in range(16)
    ]
    for response in many(plugin, bodies):
        answer = response.json()
        assert answer["meta_info"]["finish_reason"]["type"] == "stop", answer
        jsonschema.validate(json.loads(answer["text"]), json.loads(SCHEMA))


def test_chat_endpoint_streams_the_same_text_as_it_answers_at_once(plugin):
    body = {"model": "m", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    body |= {"temperature": 0, "max_tokens": 24}
    whole = post(plugin, "/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    assert whole.startswith("The capital of France is Paris.")
    pieces = []
    url = plugin.url + "/v1/chat/completions"
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=120, trust_env=False) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                pieces.append(json.loads(line[6:])["choices"][0]["delta"].get("content") or "")
    assert "".join(pieces) == whole
    assert len(pieces) > 2


def test_attestation_names_overlay_patches_and_mechanisms_and_counts_the_hot_path(plugin):
    def steps() -> int:
        return plugin.client.attestation()["ranks"][0]["hits"]["speculative_steps"]

    before = steps()
    plugin.generate(text=QUESTION, sampling=greedy(40, ignore_eos=True))
    document = plugin.client.attestation()
    assert steps() > before
    assert document["mode"] == "overlay"
    assert document["overlay"]["name"] == "smollm2-135m-dflash-cpu"
    assert document["consistent"] is True
    assert document["simulated_acceptance"] == {}
    rank = document["ranks"][0]
    assert 12.0 < rank["mechanisms"]["w12"]["bits_per_weight"] < 12.1
    assert len(rank["patches"]) >= 5
    info = plugin.server_info()["internal_states"][0]["specpilot"]["ranks"][0]
    assert info["overlay"]["sha256"] == document["overlay"]["sha256"]


def test_metrics_export_the_overlay_and_the_counters_beside_sglangs(plugin):
    text = httpx.get(plugin.url + "/metrics", timeout=30, trust_env=False).text
    assert "sglang:" in text
    assert 'specpilot_overlay_info{mode="overlay",overlay="smollm2-135m-dflash-cpu",rank="0"' in text
    hits = [line for line in text.splitlines() if line.startswith('specpilot_hits_total{path="speculative_steps"')]
    assert float(hits[0].rpartition(" ")[2]) > 0


def test_aborts_and_disconnects_leak_nothing_and_crash_nothing(plugin):
    """64 requests in flight, most of them cut off by the client, while SGLang checks its pools every step."""

    def one(index: int) -> str:
        dice = random.Random(index)
        body = {
            "text": f"{QUESTION} {index % 8}",
            "sampling_params": {"temperature": dice.choice([0, 0.8]), "max_new_tokens": dice.randint(4, 64)},
            "rid": f"soak-{index}",
            "stream": True,
        }
        fate = dice.choice(["finish", "disconnect", "abort", "abort"])
        wait = dice.uniform(0.0, 6.0)
        with httpx.stream("POST", plugin.url + "/generate", json=body, timeout=300, trust_env=False) as response:
            deadline = time.monotonic() + wait
            for _ in response.iter_lines():
                if fate != "finish" and time.monotonic() > deadline:
                    if fate == "abort":
                        post(plugin, "/abort_request", {"rid": body["rid"]})
                    break
        return fate

    fates = run_all(one, list(range(96)), 64)
    assert set(fates) == {"finish", "disconnect", "abort"}
    plugin.client.flush_cache()
    after = plugin.generate(text=QUESTION, sampling=greedy(16, ignore_eos=True))
    assert len(after.output_ids) == 16
    assert "leak" not in plugin.log.read_text().lower()


def test_sigterm_ends_every_process_within_ten_seconds(plugin):
    """Runs last in this module: the server is gone afterwards."""
    processes = plugin.processes()
    assert len(processes) >= 3
    begin = time.monotonic()
    psutil.Process(plugin.pid).terminate()
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []
    assert time.monotonic() - begin < 10
