"""A real CPU server with one perturbed matrix: its answers hold against its own weights, not the model's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from specpilot_sglang.eval import suites
from specpilot_sglang.eval.forcing import Verdict, force
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.forcing_verdict import ForcingVerdict, compare
from specpilot_sglang.eval.presets import dflash_args
from specpilot_sglang.eval.prompts import encode, load_tokenizer
from specpilot_sglang.eval.recording import greedy
from specpilot_sglang.eval.records import Request, Run
from specpilot_sglang.eval.servers import Server

WEIGHT = "model.layers.15.mlp.down_proj.weight"
TOKENS = 40


def perturbed(model: Path, folder: Path) -> Path:
    """A copy of the model with one of its 211 matrices 25% larger: about 4% of greedy tokens change.

    Token forcing sees what changes tokens; 3% larger changed none of 320.
    """
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[WEIGHT] = tensors[WEIGHT] * 1.25
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def plain_greedy(model: Path) -> Run:
    """Autoregressive float32 answers by transformers, as a reference that no server of ours had a part in."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    rows = []
    for prompt in encode(suites.load("gsm8k", limit=4), tokenizer):
        with torch.inference_mode():
            out = network.generate(torch.tensor([prompt.ids]), max_new_tokens=TOKENS, do_sample=False)
        ids = out[0, len(prompt.ids) :].tolist()
        rows.append(Request(prompt.id, prompt.suite, prompt.ids, ids, "length" if len(ids) == TOKENS else "stop"))
    return Run(greedy(TOKENS), rows)


def judged(reference: Run, server: Server) -> ForcingVerdict:
    exact = ForcingReport([Verdict(r.id, r.suite, len(r.output_ids), 1) for r in reference.requests])
    report = ForcingReport(force(reference, server.client, concurrency=4))
    # So few positions cannot bound a rate at half a point; the margin rule is what is tested.
    return compare(exact, report, dtype="float32", max_excess=0.1)


@pytest.mark.long
@pytest.mark.server
def test_perturbed_weight_is_caught_on_a_real_server(smollm2, drafter, tmp_path):
    changed = perturbed(smollm2, tmp_path / "perturbed")
    own, original = plain_greedy(changed), plain_greedy(smollm2)
    with Server(dflash_args(changed, drafter, dtype="float32"), name="perturbed", start_timeout_s=300.0) as server:
        same, other = judged(own, server), judged(original, server)
    assert same.accepted, same.reason
    assert not other.accepted
    assert other.beyond_tie
    assert other.positions == sum(len(r.output_ids) for r in original.requests)
