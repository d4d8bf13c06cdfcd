"""Long runs of trees on the CPU platform, each too long for a test: `python tests/tree/cpu_runs.py NAME --out FILE`.

accept  FP32 answers of a tree server against plain decoding's on N held-out prompts, eight at a time; accept lengths of
        trees of 32 and 16 rows and of stock's chain on the same prompts, cold and with a warm prefix cache, and alone.
soak    a tree server under SGLang's strict memory check for some minutes of requests, of which many are aborted or
        their connections dropped; afterwards one prompt that needs nearly every slot.
ranks   a tiny hybrid model on two ranks (with --shapes half of the 27B shape on two GPUs): both must accept the same
        tokens in every step of N requests.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from specpilot_sglang.assets import drafter_path, prepare_smollm2
from specpilot_sglang.eval.acceptance import by_suite
from specpilot_sglang.eval.forcing import force
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.parallel import run_all
from specpilot_sglang.eval.presets import ar_args, dflash_args, specpilot_args
from specpilot_sglang.eval.prompts import encode, load_tokenizer
from specpilot_sglang.eval.recording import greedy, record
from specpilot_sglang.eval.servers import Server
from specpilot_sglang.eval.suites import load

HERE = Path(__file__).parent
START_S = 400.0
STRICT = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}


def lengths(run):
    return {a.suite: [round(a.length, 3), round(a.error, 3), a.requests] for a in by_suite(run.requests)}


def accept(args):
    model, drafter = prepare_smollm2(), drafter_path()
    items = [i for suite in ("mt-bench", "humaneval") for i in load(suite, limit=args.requests // 3)]
    items += load("gsm8k", limit=args.requests - len(items))  # MT-Bench has only 80
    prompts = encode(items, load_tokenizer(model))
    tree = specpilot_args(model, drafter, "smollm2-135m-dflash-cpu-tree", dtype="float32")
    small = specpilot_args(model, drafter, str(HERE / "overlays" / "tree16"), dtype="float32")
    arms = {
        "ar": ar_args(model, dtype="float32"),
        "tree32": tree,
        "tree16": small,
        "chain": dflash_args(model, drafter, dtype="float32"),
    }
    threads = {name: {"OMP_NUM_THREADS": str(count)} for name, count in zip(args.arms, args.threads, strict=True)}
    servers = {n: Server(arms[n], name=n, env={**STRICT, **threads[n]}, start_timeout_s=START_S) for n in args.arms}
    found, runs = {"prompts": len(prompts)}, {}

    def keep():
        args.out.write_text(json.dumps(found, indent=1))

    def cold(name):
        with_server = servers[name]
        with_server.start()
        runs[name] = record(with_server.client, prompts, greedy(args.tokens), concurrency=8)
        found[name] = {"cold": lengths(runs[name]), "failed": [r.error for r in runs[name].requests if r.error]}
        keep()

    # The threads must outlive the servers: a server gets SIGTERM when the thread that started it ends.
    with ThreadPoolExecutor(len(servers)) as pool:
        try:
            list(pool.map(cold, servers))
            if {"ar", "tree32"} <= runs.keys():
                compare(args, found, runs, servers["tree32"], prompts, keep)
        finally:
            keep()
            list(pool.map(Server.stop, servers.values()))


def compare(args, found, runs, tree, prompts, keep):
    reference = runs["ar"]
    for name in runs.keys() - {"ar"}:
        pairs = zip(reference.requests, runs[name].requests, strict=True)
        found[name]["equal_to_ar"] = sum(a.output_ids == b.output_ids for a, b in pairs)
    keep()
    verdicts = force(reference, tree.client, concurrency=8, first_pass={r.id: r for r in runs["tree32"].requests})
    report = ForcingReport(verdicts)
    found["forced"] = {
        "positions": report.positions,
        "counted": len(report.counted),
        "excused": [dataclasses.asdict(m) for m in report.mismatches if m not in report.counted],
        "failed": len(report.failed),
    }
    keep()
    # Forcing left every prompt in the prefix cache.
    few = prompts[::5]
    ids = {p.id for p in few}
    for name, concurrency in (("warm", 8), ("alone", 1)):
        again = record(tree.client, few, greedy(args.tokens), concurrency=concurrency)
        first = [r for r in runs["tree32"].requests if r.id in ids]
        found["tree32"][name] = {
            "lengths": lengths(again),
            "cold_lengths_of_these": lengths(dataclasses.replace(runs["tree32"], requests=first)),
            "equal": sum(a.output_ids == b.output_ids for a, b in zip(first, again.requests, strict=True)),
            "prompts": len(few),
        }


def soak(args):
    model, drafter = prepare_smollm2(), drafter_path()
    log = args.out.with_suffix(".log")
    flags = specpilot_args(model, drafter, "smollm2-135m-dflash-cpu-tree", dtype="float32")
    flags += ["--max-total-tokens", "4096"]
    with Server(flags, name="soak", env=STRICT, log=log, start_timeout_s=START_S) as server:
        end = time.monotonic() + args.minutes * 60
        fates = run_all(lambda i: until(server, i, end), range(12), 12)
        counts = {fate: sum(f[fate] for f in fates) for fate in ("finish", "abort", "disconnect")}
        server.client.flush_cache()
        # All but 200 of the slots are needed at once: what a request had kept would be missing.
        whole = server.generate(
            input_ids=[(7 * i) % 4000 + 100 for i in range(3850)], sampling={"temperature": 0, "max_new_tokens": 16}
        )
        hits = server.client.attestation()["ranks"][0]["hits"]
        ended = server.client.attestation() is not None
    text = log.read_text().lower()
    found = {"minutes": args.minutes, "requests": counts, "last_prompt_answered": len(whole.output_ids), "hits": hits}
    found |= {"leak_in_log": "leak" in text, "tracebacks": text.count("traceback"), "alive": ended}
    args.out.write_text(json.dumps(found, indent=1))


def until(server, seed, end):
    dice, counts = random.Random(seed), {"finish": 0, "abort": 0, "disconnect": 0}
    texts = [
        "Write a story about a cat.",
        "User: What is 2+2?\nAssistant:",
        "def fib(n):",
        "List three colours and why",
    ]
    while time.monotonic() < end:
        rid = f"soak-{seed}-{sum(counts.values())}"
        sampling = {"temperature": dice.choice([0, 0.8]), "max_new_tokens": dice.randint(4, 160)}
        # A third of the prompts is seen for the first time, the rest hits the prefix cache.
        text = dice.choice(texts) + (f" {dice.random()}" if dice.random() < 0.33 else "") * dice.randint(1, 40)
        body = {"text": text, "sampling_params": sampling, "rid": rid, "stream": True}
        fate, deadline = dice.choice(["finish", "abort", "disconnect"]), time.monotonic() + dice.uniform(0, 4)
        with httpx.stream("POST", server.url + "/generate", json=body, timeout=300, trust_env=False) as response:
            for _ in response.iter_lines():
                if fate != "finish" and time.monotonic() > deadline:
                    if fate == "abort":
                        httpx.post(server.url + "/abort_request", json={"rid": rid}, timeout=60, trust_env=False)
                    break
        counts[fate] += 1
    return counts


def ranks(args):
    from specpilot_sglang.platform_cpu.tiny_hybrid import write_drafter, write_hybrid

    folder = Path(tempfile.mkdtemp())
    if args.shapes is None:
        target, drafter, vocab = write_hybrid(folder / "t"), write_drafter(folder / "d"), 256
        # States are sized by free memory otherwise: each rank of a tiny model took 25 GB of a large machine.
        flags = ["--dtype", "float32", "--max-total-tokens", "8192", "--max-mamba-cache-size", "64"]
    else:
        # Two GPUs, and a shape with dummy weights.
        target, drafter = (args.shapes / f"qwen3.8-27b-half{kind}" for kind in ("", "-dflash"))
        vocab = 248320
        flags = ["--load-format", "dummy", "--speculative-draft-load-format", "dummy", "--context-length", "4096"]
        flags += ["--cuda-graph-bs-decode", "1", "2", "4", "8", "12", "--disable-prefill-cuda-graph"]
        flags += ["--max-total-tokens", "16384", "--mem-fraction-static", "0.9"]
        flags += ["--disable-custom-all-reduce"]  # NCCL alone: nothing to compile
    flags += ["--model-path", str(target), "--skip-tokenizer-init", "--max-running-requests", "12"]
    flags += ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(drafter), "--random-seed", "1"]
    flags += ["--speculative-plugin", "specpilot", "--specpilot-overlay", str(HERE / "overlays/hashed")]
    env = {**STRICT, "OMP_NUM_THREADS": "1"}
    log = args.out.with_suffix(".log")
    with Server([*flags, "--tp", "2"], name="tp2", env=env, log=log, start_timeout_s=START_S) as server:

        def one(i):
            dice = random.Random(i)
            ids = [dice.randrange(3, vocab) for _ in range(dice.choice((2, 17, 64, 65, 130)))]
            sampling = {"temperature": 0 if i % 3 else 0.8, "max_new_tokens": dice.randint(4, 24), "ignore_eos": True}
            return len(server.generate(input_ids=ids, sampling=sampling).output_ids)

        tokens = sum(run_all(one, range(args.requests), 12))
        hits = [rank["hits"] for rank in server.client.attestation()["ranks"]]
    found = {"requests": args.requests, "tokens": tokens, "ranks": hits}
    found["tokens_a_step"] = tokens / max(1, hits[0]["tree_steps"])
    found["equal"] = len(hits) == 2 and hits[0]["accepted_checksum"] == hits[1]["accepted_checksum"] > 0
    args.out.write_text(json.dumps(found, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=["accept", "soak", "ranks"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=48, help="accept: of each answer")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--arms", nargs="+", default=["ar", "tree32", "tree16", "chain"], help="accept: compares ar with tree32"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 3, 2, 1], help="accept: of each of the arms")
    parser.add_argument("--shapes", type=Path, help="ranks: folder of shapes, to run on two GPUs")
    args = parser.parse_args()
    globals()[args.run](args)


if __name__ == "__main__":
    main()
