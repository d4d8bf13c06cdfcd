"""Sampling verification of a linear block: every emitted token must be a draw from the target."""

from __future__ import annotations

import torch

from specpilot_sglang.platform_cpu.spec_sampling import chain_sampling_target_only


def verify(candidates, probs, coins, final, **thresholds):
    batch, width = candidates.shape
    index = torch.arange(batch * width, dtype=torch.int32).view(batch, width)
    predicts = torch.full((batch * width,), -7, dtype=torch.int32)
    accept_index = torch.zeros(batch, width, dtype=torch.int32)
    accepted = torch.zeros(batch, dtype=torch.int32)
    links = torch.zeros(batch, width, dtype=torch.int64)
    chain_sampling_target_only(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accepted,
        candidates=candidates,
        retrive_index=index,
        retrive_next_token=links,
        retrive_next_sibling=links,
        uniform_samples=coins,
        uniform_samples_for_final_sampling=final,
        target_probs=probs,
        draft_probs=torch.zeros_like(probs),
        **thresholds,
    )
    bonus = predicts[accept_index[torch.arange(batch), accepted.long()].long()]
    return accepted, bonus, accept_index


def test_first_token_is_distributed_as_the_target():
    torch.manual_seed(0)
    n, vocab = 40000, 5
    p = torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0])
    candidates = torch.zeros(n, 3, dtype=torch.int64)
    candidates[:, 1] = torch.arange(n) % vocab
    candidates[:, 2] = 1
    probs = p.expand(n, 3, vocab).contiguous()
    accepted, bonus, _ = verify(candidates, probs, torch.rand(n, 3), torch.rand(n))
    first = torch.where(accepted > 0, candidates[:, 1], bonus.long())
    for drafted in range(vocab):
        seen = torch.bincount(first[candidates[:, 1] == drafted], minlength=vocab) / (n / vocab)
        assert (seen - p).abs().max() < 0.02, (drafted, seen)


def test_refused_token_is_never_drawn_again_and_zero_mass_never_appears():
    n = 2000
    probs = torch.tensor([0.5, 0.5, 0.0]).expand(n, 2, 3).contiguous()
    candidates = torch.zeros(n, 2, dtype=torch.int64)
    accepted, bonus, _ = verify(candidates, probs, torch.full((n, 2), 0.9), torch.rand(n))
    assert (accepted == 0).all()
    assert (bonus == 1).all()


def test_whole_block_accepted_draws_from_the_last_row():
    probs = torch.zeros(1, 3, 4)
    probs[0, 0, 1] = probs[0, 1, 2] = probs[0, 2, 3] = 1.0
    accepted, bonus, index = verify(torch.tensor([[0, 1, 2]]), probs, torch.full((1, 3), 0.999), torch.tensor([0.999]))
    assert accepted.tolist() == [2]
    assert bonus.tolist() == [3]
    assert index.tolist() == [[0, 1, 2]]


def test_acceptance_stops_at_the_first_refusal():
    probs = torch.zeros(1, 4, 4)
    probs[0, 0, 1] = 1.0
    probs[0, 1, 3] = 1.0  # the draft says 2
    probs[0, 2, 3] = 1.0  # would be accepted if the walk went on
    probs[0, 3, 0] = 1.0
    accepted, bonus, index = verify(torch.tensor([[0, 1, 2, 3]]), probs, torch.full((1, 4), 0.5), torch.tensor([0.5]))
    assert accepted.tolist() == [1]
    assert bonus.tolist() == [3]
    assert index.tolist() == [[0, 1, -1, -1]]


def test_single_threshold_accepts_more():
    probs = torch.tensor([0.3, 0.7]).expand(1, 2, 2).contiguous()
    candidates = torch.tensor([[0, 0]])
    coins, final = torch.full((1, 2), 0.9), torch.tensor([0.1])
    assert verify(candidates, probs, coins, final)[0].item() == 0
    assert verify(candidates, probs, coins, final, threshold_single=0.25)[0].item() == 1
    assert verify(candidates, probs, coins, final, threshold_acc=0.3)[0].item() == 1
