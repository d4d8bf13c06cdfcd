"""Trees on SGLang's own scheduler, overlap on: a tiny hybrid model answers in FP32 exactly as plain decoding.

The model's weights are seeded random numbers. Requests arrive while others decode, extend earlier prompts, are
aborted, and are retracted by force, all under SGLang's strict memory check.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specpilot_sglang.platform_cpu.tiny_hybrid import HIDDEN, VOCAB, write_drafter, write_hybrid

pytestmark = [pytest.mark.slow]

SCRIPT = Path(__file__).parent / "scheduler_run.py"
REQUESTS = int(os.environ.get("SPECPILOT_TEST_REQUESTS", "20"))
BUDGET = 16


def run(folder, args, requests, ranks=1, **env):
    job = folder / "job.json"
    job.write_text(json.dumps({"args": args, "requests": requests, "ranks": ranks}))
    settings = {
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
        "SGLANG_TEST_RETRACT": "1",
        "SGLANG_TEST_RETRACT_INTERVAL": "9",
        **env,
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(job)],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=570,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    # Python itself warns of shared memory that the end of a process left to be cleaned up.
    assert "leak" not in done.stderr.replace("leaked shared_memory objects", "")
    return json.loads(done.stdout.strip().splitlines()[-1])


def workload():
    dice = random.Random(0)
    prompts = [[dice.randrange(3, 256) for _ in range(dice.choice((2, 17, 64, 65, 130)))] for _ in range(REQUESTS)]
    for i in range(REQUESTS // 2, REQUESTS):
        prompts[i] = prompts[i - REQUESTS // 2] + [dice.randrange(3, 256) for _ in range(dice.randrange(1, 60))]
    sampling = {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}
    whole = [{"ids": p, "sampling": sampling, "after": (i // 3) * 4} for i, p in enumerate(prompts)]
    cut = [{"ids": [7, 8, 9 + i], "sampling": sampling, "after": 6 * i, "abort": 6 * i + 5} for i in range(6)]
    return whole, cut


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    target, drafter = write_hybrid(folder / "target"), write_drafter(folder / "drafter")
    overlay = folder / "tree"
    overlay.mkdir()
    (overlay / "overlay.yaml").write_text(f"name: tree\ntree: {{kind: best-first, budget: {BUDGET}}}\n")
    plain = ["--model-path", str(target), "--dtype", "float32", "--device", "cpu", "--skip-tokenizer-init"]
    plain += ["--max-total-tokens", "4096", "--max-running-requests", "6", "--max-mamba-cache-size", "64"]
    drafted = ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(drafter)]
    plugin = ["--speculative-plugin", "specpilot", "--specpilot-overlay", str(overlay)]
    return folder, plain, [*plain, *drafted, *plugin]


def test_hybrid_trees_answer_as_plain_decoding_with_aborts_prefix_hits_and_retraction(hybrid):
    folder, plain, tree = hybrid
    whole, cut = workload()
    expected = run(folder, plain, whole, SGLANG_TEST_RETRACT="0")
    found = run(folder, tree, [*whole, *cut])
    assert found["outputs"][:REQUESTS] == expected["outputs"]
    assert sum(found["retracted"]) > 0, "nothing was retracted"
    assert sum(found["cached"][:REQUESTS]) > 0, "no prefix was hit"
    assert any(len(found["outputs"][i]) < 32 for i in range(REQUESTS, REQUESTS + 6)), "nothing was aborted"
    steps, tokens = sum(found["verify_steps"][:REQUESTS]), sum(map(len, found["outputs"][:REQUESTS]))
    assert tokens > 1.1 * steps, "hardly a draft was accepted: commits of longer paths went untested"
    assert found["hits"]["tree_steps"] > 0
    assert found["hits"]["tree_nodes_verified"] >= BUDGET * found["hits"]["tree_steps"]


def test_a_long_chain_answers_up_to_the_context_limit(hybrid):
    """Each step reserves two blocks behind a request: stock's slot table is too short for blocks of 16 at the limit."""
    folder, plain, tree = hybrid
    drafter = write_drafter(folder / "long", block_size=16)
    chain = folder / "chain"
    chain.mkdir()
    (chain / "overlay.yaml").write_text("name: chain\ntree: {kind: chain}\n")
    limit = ["--context-length", "100"]
    args = [str(drafter) if part == str(folder / "drafter") else part for part in tree[:-1]]
    asked = [{"ids": [5, 6, 7, 8], "sampling": {"temperature": 0, "max_new_tokens": 200, "ignore_eos": True}}] * 2
    quiet = {"SGLANG_TEST_RETRACT": "0"}
    expected, found = (run(folder, a, asked, **quiet) for a in ([*plain, *limit], [*args, str(chain), *limit]))
    assert found["outputs"] == expected["outputs"]
    assert [reason["type"] for reason in found["finish"]] == ["length"] * 2
    assert found["hits"]["speculative_steps"] > 0


def joining():
    """Requests that come alone, then two, then six at once, then fewer and fewer."""
    dice = random.Random(9)
    asked = [
        {
            "ids": [dice.randrange(3, 256) for _ in range(dice.choice((3, 20, 70)))],
            "sampling": {"temperature": 0, "max_new_tokens": count, "ignore_eos": True},
            "after": after,
        }
        for count, after in ((60, 0), (40, 5), (12, 10), (20, 10), (28, 10), (200, 10))
    ]
    asked[1]["sampling"] |= {"frequency_penalty": 0.1, "presence_penalty": 0.05}
    asked[4]["sampling"] |= {"repetition_penalty": 1.1}
    asked[0]["logprob"] = True
    return asked


def test_widths_follow_requests_that_join_and_leave_and_answers_stay_plain_decodings(hybrid):
    """Two are penalised for their own tokens, one goes on to the context limit, one repeats another's answer.

    With overlap, plain decoding itself penalises for a token one step late; so it runs without.
    """
    folder, plain, tree = hybrid
    narrow = folder / "narrow"
    narrow.mkdir()
    (narrow / "overlay.yaml").write_text("name: narrow\ntree: {kind: best-first, budget: 20, call_budget: 24}\n")
    limit, quiet, asked = ["--context-length", "96"], {"SGLANG_TEST_RETRACT": "0"}, joining()
    expected = run(folder, [*plain, *limit, "--disable-overlap-schedule"], asked, **quiet)["outputs"]
    again = asked[0] | {"ids": asked[0]["ids"] + expected[0][:50], "follows": 0}
    again["sampling"] = asked[0]["sampling"] | {"max_new_tokens": 10}
    args = [*tree[:-1], str(narrow), *limit, "--mamba-track-interval", "64"]
    found = run(folder, args, [*asked, again], **quiet)
    assert found["outputs"] == [*expected, expected[0][50:]]
    # States at token 64 were kept while it was decoded, and the cached prefix ends there.
    assert len(asked[0]["ids"]) < 64 <= found["cached"][-1]
    first, second = (torch.tensor(found["logprobs"][i]) for i in (0, -1))
    assert torch.allclose(first[50:60], second[:10], atol=1e-4)
    # Slots that a step reserves lie past the longest context.
    assert len(asked[5]["ids"]) + len(expected[5]) == 94
    assert found["finish"][5]["type"] == "length"
    hits = found["hits"]
    assert all(hits[f"tree_steps_of_{n}_rows"] > 0 for n in (8, 20)), hits
    assert sum(hits[f"tree_steps_of_{n}_rows"] for n in (8, 16, 20)) == hits["tree_steps"]
    assert sum(found["verify_steps"]) < sum(map(len, found["outputs"])), "nothing was accepted"


@pytest.mark.long
def test_two_ranks_accept_the_same_tokens_in_every_step(hybrid):
    """Greedy and sampled requests: what a rank draws for itself must not count."""
    folder, _, tree = hybrid
    args = [*tree[:-1], str(SCRIPT.parent / "overlays" / "hashed"), "--tp", "2"]
    dice = random.Random(2)
    asked = [
        {
            "ids": [dice.randrange(3, 256) for _ in range(dice.choice((2, 17, 65)))],
            "sampling": {"temperature": 0 if i % 3 else 0.8, "max_new_tokens": dice.randint(3, 10), "ignore_eos": True},
        }
        for i in range(int(os.environ.get("SPECPILOT_TEST_REQUESTS", "24")))
    ]
    first, second = run(folder, args, asked, ranks=2, SGLANG_TEST_RETRACT="0", TORCHDYNAMO_DISABLE="1")
    assert first["outputs"] == second["outputs"]
    assert first["hits"] == second["hits"]
    assert first["hits"]["accepted_checksum"] > 0
    assert min(first["hits"][f"tree_steps_of_{n}_rows"] for n in (8, 16)) > 0
    assert sum(first["verify_steps"]) < sum(map(len, first["outputs"])), "nothing was accepted"


def with_selector(folder):
    """Turn a DFlash drafter into a DFlash2 one without convolutions: seeded random codebooks, six candidates."""
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["DFlash2DraftModel"]
    config["dflash_config"] |= {"selector_rank": 8, "selector_top_k": 6}
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(3)
    shapes = {
        "predecessor_codebook": (VOCAB, 8),
        "successor_codebook": (VOCAB, 8),
        "hidden_projection.weight": (8, HIDDEN),
    }
    extra = {f"candidate_selector.{n}": torch.randn(s, generator=generator) for n, s in shapes.items()}
    save_file(load_file(folder / "model.safetensors") | extra, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def with_markov_head(folder, from_anchor=True):
    """Turn a DFlash drafter into a DSpark one with a seeded random Markov head of rank 8."""
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["DSparkDraftModel"], "markov_rank": 8, "markov_head_type": "vanilla"}
    config |= {"enable_confidence_head": False, "sample_from_anchor": from_anchor}
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(5)
    extra = {f"markov_head.markov_w{i}.weight": 0.3 * torch.randn(VOCAB, 8, generator=generator) for i in (1, 2)}
    save_file(load_file(folder / "model.safetensors") | extra, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.long
@pytest.mark.parametrize("kind", [with_selector, with_markov_head, partial(with_markov_head, from_anchor=False)])
def test_trees_over_pair_scores_and_their_log_probabilities_are_those_of_plain_decoding(tmp_path, kind):
    """DFlash2's and DSpark's edges, budgets below the rows, eight requests at once that report log probabilities."""
    target, drafter = write_hybrid(tmp_path / "target"), kind(write_drafter(tmp_path / "drafter"))
    overlay = tmp_path / "tree"
    overlay.mkdir()
    (overlay / "overlay.yaml").write_text("name: tree\ntree: {kind: best-first, budget: 13}\n")
    plain = ["--model-path", str(target), "--dtype", "float32", "--device", "cpu", "--skip-tokenizer-init"]
    plain += ["--max-total-tokens", "4096", "--max-running-requests", "8", "--max-mamba-cache-size", "64"]
    tree = [*plain, "--speculative-draft-model-path", str(drafter)]
    tree += ["--speculative-plugin", "specpilot", "--specpilot-overlay", str(overlay)]
    dice = random.Random(4)
    sampling = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    prompts = [[dice.randrange(3, 256) for _ in range(dice.choice((5, 20, 40)))] for _ in range(8)]
    requests = [{"ids": p, "sampling": sampling, "logprob": True} for p in prompts]
    quiet = {"SGLANG_TEST_RETRACT": "0", "TORCHDYNAMO_DISABLE": "1"}
    expected, found = (run(tmp_path, args, requests, **quiet) for args in (plain, tree))
    assert found["outputs"] == expected["outputs"]
    assert found["hits"]["tree_steps"] > 0
    assert sum(found["verify_steps"]) < sum(map(len, found["outputs"])), "nothing was accepted"
    for ours, theirs in zip(found["logprobs"], expected["logprobs"], strict=True):
        count = min(len(ours), len(theirs))
        assert count >= 24
        assert torch.allclose(torch.tensor(ours[:count]), torch.tensor(theirs[:count]), atol=1e-4)
