"""The whole server on the CPU platform: DFLASH against plain decoding, tensor parallel, hybrid models, no leaks."""

from __future__ import annotations

import concurrent.futures
import json
import random
import time

import httpx
import pytest
import torch

from specpilot_sglang.eval.servers import Server
from specpilot_sglang.platform_cpu.tiny_hybrid import write_drafter, write_hybrid

pytestmark = [pytest.mark.server, pytest.mark.slow]

ENV = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}
PROMPTS = [
    "Natalia sold clips to 48 of her friends in April, and half as many in May. How many did she sell in all?",
    "def fibonacci(n: int) -> int:\n    '''Return the n-th Fibonacci number.'''\n",
    "Write a short poem about the sea.",
    "List the planets of the solar system.",
    "Explain in one sentence why the sky is blue.",
    "Translate 'good morning' into French and German.",
    "A train travels 60 miles in 1.5 hours. What is its speed?",
    "Name three uses of a paperclip.",
]


def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def generate(server, timeout=300.0, **body):
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=timeout)
    answer.raise_for_status()
    return answer.json()


def all_tokens(server, inputs, tokens, key, at_once):
    def one(prompt):
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        return generate(server, **{key: prompt, "sampling_params": sampling})

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, inputs))


def outputs(answers):
    return [a["output_ids"] for a in answers]


@pytest.fixture(scope="module")
def plain_outputs(smollm2):
    with Server(["--model-path", str(smollm2), "--dtype", "float32"], name="cpu-ar") as server:
        return outputs(all_tokens(server, [chat(p) for p in PROMPTS], 48, "text", 4))


@pytest.fixture(scope="module")
def dflash(smollm2, drafter, plain_outputs):
    args = ["--model-path", str(smollm2), "--dtype", "float32", "--speculative-algorithm", "DFLASH"]
    with Server([*args, "--speculative-draft-model-path", str(drafter)], env=ENV, name="cpu-dflash") as server:
        yield server


def test_dflash_answers_as_plain_decoding_does(dflash, plain_outputs):
    prompts = [chat(p) for p in PROMPTS]
    cold = all_tokens(dflash, prompts, 48, "text", 1)
    assert outputs(cold) == plain_outputs
    steps = sum(a["meta_info"]["spec_verify_ct"] for a in cold)
    assert 48 * len(PROMPTS) / steps > 2.0, "the trained drafter hardly helps: taps or context rows are wrong"
    warm = all_tokens(dflash, prompts, 48, "text", 8)
    assert outputs(warm) == plain_outputs, "concurrency 8 on cached prefixes"
    assert sum(a["meta_info"]["cached_tokens"] for a in warm) > 0
    again = sum(a["meta_info"]["spec_verify_ct"] for a in warm)
    assert abs(again - steps) <= 0.05 * steps, "draft context is missing on cached prefixes"


def test_json_schema_through_dflash(dflash):
    schema = json.dumps(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer"}},
            "required": ["name", "n"],
            "additionalProperties": False,
        }
    )
    for subject in ("a cat", "Paris"):
        sampling = {"temperature": 0, "max_new_tokens": 96, "json_schema": schema}
        answer = generate(dflash, text=chat(f"Describe {subject} as JSON with name and n."), sampling_params=sampling)
        assert set(json.loads(answer["text"])) == {"name", "n"}


def test_request_options_through_dflash(dflash):
    prompt = chat("Write a list of five fruits.")
    stopped = generate(dflash, text=prompt, sampling_params={"temperature": 0, "max_new_tokens": 40, "stop": ["\n2"]})
    assert "\n2" not in stopped["text"]
    assert stopped["meta_info"]["finish_reason"]["matched"] == "\n2"
    pair = generate(dflash, text=prompt, sampling_params={"temperature": 0.7, "max_new_tokens": 16, "n": 2})
    assert len(pair) == 2
    scored = generate(
        dflash, text=prompt, return_logprob=True, sampling_params={"temperature": 0, "max_new_tokens": 12}
    )
    logprobs = scored["meta_info"]["output_token_logprobs"]
    assert [entry[1] for entry in logprobs] == scored["output_ids"]
    assert all(entry[0] <= 0 for entry in logprobs)


def test_aborts_and_disconnects_leak_nothing(dflash):
    rng = random.Random(1)

    def job(i):
        tokens = rng.choice([8, 40, 80])
        body = {
            "text": chat(
                "Tell me about " + " and ".join(rng.choices(["cats", "seas", "moons"], k=rng.randrange(1, 40)))
            ),
            "rid": f"request-{i:03d}",
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
        }
        fate = i % 3
        if fate == 0:
            assert generate(dflash, **body)["meta_info"]["completion_tokens"] == tokens
        elif fate == 1:
            url = f"{dflash.url}/generate"
            with httpx.stream("POST", url, json={**body, "stream": True}, timeout=300) as stream:
                next(stream.iter_lines())
        else:
            with concurrent.futures.ThreadPoolExecutor(1) as one:
                answer = one.submit(httpx.post, f"{dflash.url}/generate", json=body, timeout=300)
                time.sleep(rng.random())
                httpx.post(f"{dflash.url}/abort_request", json={"rid": body["rid"]}, timeout=60)
                answer.result()

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        list(pool.map(job, range(64)))
    assert httpx.get(f"{dflash.url}/health_generate", timeout=60).status_code == 200
    assert "leak" not in dflash.log.read_text()


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    return write_hybrid(folder / "target"), write_drafter(folder / "drafter")


@pytest.fixture(scope="module")
def hybrid_prompts():
    rng = random.Random(0)
    # Around the convolution's width and the 64-token chunk.
    return [[rng.randrange(3, 256) for _ in range(length)] for length in (2, 17, 64, 65, 130, 200)]


@pytest.fixture(scope="module")
def hybrid_reference(hybrid, hybrid_prompts):
    """Greedy continuations by transformers' own implementation."""
    from transformers import Qwen3_5ForCausalLM

    model = Qwen3_5ForCausalLM.from_pretrained(hybrid[0], dtype=torch.float32)
    with torch.no_grad():
        return [
            model.generate(torch.tensor([p]), max_new_tokens=80, do_sample=False, eos_token_id=None)[
                0, len(p) :
            ].tolist()
            for p in hybrid_prompts
        ]


def hybrid_args(folder):
    return ["--model-path", str(folder), "--dtype", "float32", "--skip-tokenizer-init", "--max-total-tokens", "4096"]


def test_hybrid_plain_decoding_matches_transformers(hybrid, hybrid_prompts, hybrid_reference):
    with Server(hybrid_args(hybrid[0]), env=ENV, name="hybrid-ar") as server:
        assert outputs(all_tokens(server, hybrid_prompts, 80, "input_ids", 3)) == hybrid_reference


@pytest.mark.parametrize("ranks", [1, 2])
def test_hybrid_dflash_matches_transformers_at_tensor_parallel(hybrid, hybrid_prompts, hybrid_reference, ranks):
    target, drafter = hybrid
    args = [*hybrid_args(target), "--speculative-algorithm", "DFLASH", "--tp", str(ranks)]
    with Server([*args, "--speculative-draft-model-path", str(drafter)], env=ENV, name=f"hybrid-tp{ranks}") as server:
        answers = all_tokens(server, hybrid_prompts, 80, "input_ids", 3)
        assert outputs(answers) == hybrid_reference
        accepted = [a["meta_info"]["spec_correct_drafts_histogram"] for a in answers]
        assert any(sum(row[1:]) for row in accepted), (
            "no draft was ever accepted: commits of longer blocks went untested"
        )
        begin = time.monotonic()
        server.stop()
        assert time.monotonic() - begin < 10
