"""Measures a group of `h200.yaml` on a GPU: all its servers up together, asked one after the other.

Beside what `specpilot_sglang.eval.gpu.measure` asks, every speculative server is asked whether it agrees with itself:
log probabilities of its answers as its verify passes gave them, against one prefill of the same tokens. A node that saw
a wrong path, a wrong key or a wrong state is off by far more than BF16's rounding, whatever the weights.

With `--in-turns ROUNDS` the servers alternate instead, each load and each number of requests with real prompts that
many rounds on every server, so that what else the machine does meets all of them.

Usage: python tests/tree/h200_trees.py PLAN --out DIR --only GROUP --set NAME=VALUE ...
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from filelock import FileLock

from specpilot_sglang.eval.acceptance import by_suite
from specpilot_sglang.eval.gpu.arms import STAGGER_S, ServerArm, random_prompts
from specpilot_sglang.eval.gpu.plan import load_plan
from specpilot_sglang.eval.gpu.turns import measure_load
from specpilot_sglang.eval.prompts import encode, load_tokenizer
from specpilot_sglang.eval.recording import greedy, record
from specpilot_sglang.eval.suites import load

SCHEMA = '{"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"]}'


def ask(url, **body):
    response = httpx.post(f"{url}/generate", json=body, timeout=120)
    response.raise_for_status()
    return response.json()


def consistency(url, prompts, tokens, concurrency):
    """Differences between log probabilities from verify passes and from a prefill, and how the answers came about."""

    def one(ids):
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        answer = ask(url, input_ids=ids, sampling_params=sampling, return_logprob=True)
        meta = answer["meta_info"]
        decoded = [(value, token) for value, token, *_ in meta["output_token_logprobs"]]
        out = [token for _, token in decoded]
        whole = ask(
            url,
            input_ids=[*ids, *out],
            sampling_params={"temperature": 0, "max_new_tokens": 1},
            return_logprob=True,
            logprob_start_len=len(ids) - 1,
        )
        prefilled = [value for value, *_ in whole["meta_info"]["input_token_logprobs"]][1 : len(out) + 1]
        return [abs(a - b) for (a, _), b in zip(decoded, prefilled, strict=False)], len(out), meta.get("spec_verify_ct")

    with ThreadPoolExecutor(concurrency) as pool:
        found = list(pool.map(one, prompts))
    gaps = [gap for row, _, _ in found for gap in row]
    return {
        "positions": len(gaps),
        "median": statistics.median(gaps),
        "p99": sorted(gaps)[int(0.99 * (len(gaps) - 1))],
        "max": max(gaps),
        "over_0.5": sum(gap > 0.5 for gap in gaps),
        "first_requests_max": [max(row) for row, _, _ in found][:8],
        "tokens": sum(n for _, n, _ in found),
        "verify_steps": [steps for _, _, steps in found],
    }


def features(url, tokenizer):
    """One request of each sampling feature; what came back, or the error."""
    asked = {
        "sampled": {"temperature": 0.8, "top_p": 0.9, "max_new_tokens": 40},
        "seeded": {"temperature": 0.8, "sampling_seed": 7, "max_new_tokens": 40},
        "min_p": {"temperature": 1.0, "min_p": 0.1, "max_new_tokens": 40},
        "penalty": {"temperature": 0, "repetition_penalty": 1.3, "max_new_tokens": 40},
        "stop": {"temperature": 0, "stop": ["."], "max_new_tokens": 60},
        "schema": {"temperature": 0, "json_schema": SCHEMA, "max_new_tokens": 40},
    }
    found = {}
    for name, sampling in asked.items():
        try:
            text = "Describe a person as JSON:" if name == "schema" else "Three colours and an animal are"
            answer = ask(url, text=text, sampling_params=sampling)
            found[name] = (answer["text"], answer["meta_info"]["finish_reason"]["type"])
        except httpx.HTTPError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def measure(arms, turn, plan, keep):
    for arm in arms:
        arm.ask(turn)
        keep()
        if "error" in arm.result or not any("speculative" in part for part in arm.asked.args):
            continue
        begin = time.monotonic()
        try:
            small = plan.tokenizer and arm.asked.records is not None
            prompts = random_prompts(100, 49000 if small else plan.vocab_size)[:16]
            arm.result["consistency"] = {c: consistency(arm.server.url, prompts, 48, c) for c in (1, 8)}
            if small:
                arm.result["features"] = features(arm.server.url, plan.tokenizer)
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            arm.result["consistency"] = f"{type(error).__name__}: {error}"
        logging.info("%s: %s (%.0f s)", arm.asked.name, arm.result["consistency"], time.monotonic() - begin)
        arm.read_paths()
        keep()


def measure_in_turns(arms, rounds, plan, keep):
    for asked in arms[0].asked.loads:
        measure_load(arms, asked, rounds)
        keep()
    if arms[0].asked.records is not None:
        answer_in_turns(arms, rounds, plan, keep)
    for arm in arms:
        arm.read_paths()
    keep()


def answer_in_turns(arms, rounds, plan, keep):
    """Tokens a second over the wall time of all real prompts, prefixes cached, and accept lengths, by requests."""
    asked = arms[0].asked.records
    items = [item for suite, count in asked.suites.items() for item in load(suite, limit=count)]
    prompts, sampling = encode(items, load_tokenizer(plan.tokenizer)), greedy(asked.max_new_tokens)
    for arm in arms:
        record(arm.server.client, prompts, greedy(8), concurrency=max(asked.concurrency))
    for concurrency in asked.concurrency:
        few = prompts if concurrency > 16 else prompts[::2]
        found = {arm.asked.name: {"tok_s": [], "concurrency": concurrency, "prompts": len(few)} for arm in arms}
        for index in range(-1, rounds):  # one short unmeasured round
            for arm in arms if index % 2 else arms[::-1]:
                begin = time.perf_counter()
                run = record(
                    arm.server.client, few if index >= 0 else few[:concurrency], sampling, concurrency=concurrency
                )
                tokens, mine = sum(len(r.output_ids) for r in run.requests), found[arm.asked.name]
                if index >= 0:
                    mine["tok_s"].append(tokens / (time.perf_counter() - begin))
                    mine |= {"tokens": tokens, "accept": {a.suite: round(a.length, 3) for a in by_suite(run.requests)}}
                    mine["failed"] = [r.error for r in run.requests if r.error]
        for arm in arms:
            arm.result.setdefault("in_turns", []).append(found[arm.asked.name])
            logging.info("%s: %s", arm.asked.name, found[arm.asked.name])
        keep()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--in-turns", type=int, default=0, metavar="ROUNDS")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    plan = load_plan(args.plan, dict(pair.split("=", 1) for pair in args.set))
    args.out.mkdir(parents=True, exist_ok=True)
    arms = [ServerArm(plan, s, args.out) for s in plan.servers if {s.name, s.group} & set(args.only)]

    def start(place):
        time.sleep(place * STAGGER_S)
        arms[place].start()

    def keep():
        (args.out / "results.json").write_text(json.dumps([arm.result for arm in arms], indent=1, default=str))

    # The threads must outlive the measurement: a server gets SIGTERM when the thread that started it ends.
    with ThreadPoolExecutor(len(arms)) as pool:
        try:
            list(pool.map(start, range(len(arms))))
            if args.in_turns:
                measure_in_turns([arm for arm in arms if "error" not in arm.result], args.in_turns, plan, keep)
            else:
                measure(arms, FileLock(args.out / ".turn"), plan, keep)
        finally:
            list(pool.map(ServerArm.stop, arms))
            keep()


if __name__ == "__main__":
    main()
