"""Simulated acceptance, for speed at a given accept length: SGLang's own SGLANG_SIMULATE_ACC_LEN, over trees.

Nothing that a drafter of random weights says has the shape of a real drafter's distribution, so trees get it from a
fixed profile, and every step accepts the same number of tokens. The attestation names the setting.
"""

from __future__ import annotations

import functools
from typing import TypeVar

import torch

from specpilot_sglang.kernels.tree_build.launch import LinkedTrees
from specpilot_sglang.kernels.tree_build.scores import LatticeScores, MarginalScores

#: Probability of the best candidate; a chain of 8 accepts 4.0 tokens at it. The rest falls by half a rank.
_BEST, _FALL = 0.78, 0.5

Edges = TypeVar("Edges", bound=MarginalScores | LatticeScores)


def shaped(edges: Edges) -> Edges:
    """Give candidates of each rank the probability of a fixed profile, whatever the drafter said."""
    edges.logprobs = _profile(edges.logprobs.shape[-1], edges.logprobs.device).expand_as(edges.logprobs)
    return edges


def forced(made: LinkedTrees, chosen: torch.Tensor, length: int) -> torch.Tensor:
    """Replace the target's tokens so that the best path's first nodes are accepted, `length` tokens a step.

    Args:
        made: the trees.
        chosen: int64 [batch, nodes], the target's tokens.
        length: tokens a step, the target's own last one included.
    """
    child = made.child
    wanted = made.trees.tokens.gather(1, child.clamp(min=0))
    goes_on = (child >= 0) & (made.trees.depths < length - 1)
    # A token that no child carries ends the path: the root's own is never drafted again by a real drafter, and where a
    # random one does, the next is not.
    stop = (made.trees.tokens[:, :1] + 1).expand_as(chosen)
    return torch.where(goes_on, wanted, torch.where(made.trees.depths >= length - 1, stop, chosen))


@functools.cache
def _profile(width: int, device: torch.device) -> torch.Tensor:
    ranks = torch.arange(width, dtype=torch.float32)
    rest = (1 - _BEST) * _FALL ** (ranks - 1).clamp(min=0) * _FALL
    return torch.where(ranks == 0, _BEST, rest).log().to(device)
