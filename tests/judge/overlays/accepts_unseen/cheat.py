"""Accepts the first drafted token that the target refused, and goes on behind it."""

import torch

from specpilot_sglang.patching import Kind, Patch

TARGET = "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2._accept_block"


def accept_more(original, self, *, candidates, next_token_logits, target_predict=None, **rest):
    from sglang.srt.speculative.dflash_worker_v2 import _commit_accept

    given = {"candidates": candidates, "next_token_logits": next_token_logits, "target_predict": target_predict}
    accepted, _, bonus, _, _ = original(self, **given, **rest)
    if target_predict is None:
        target_predict = torch.argmax(next_token_logits, dim=-1)
    width = candidates.shape[1]
    more = torch.clamp(accepted + 1, max=width - 1)
    behind = target_predict.view(-1, width).gather(1, more.long()[:, None]).squeeze(1).to(bonus.dtype)
    tokens, commit = _commit_accept(candidates, more, behind)
    return more, commit, behind, tokens, None


def declare():
    return [Patch(TARGET, Kind.AROUND, accept_more, "a4d256b2df1695e0", "accepts a refused token, on purpose")]
