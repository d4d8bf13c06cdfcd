"""The best few tokens of a large vocabulary and its normaliser, reading the logits once.

The best k entries of a row lie in the k blocks with the largest maxima: one kernel takes maxima and partial sums of
exponentials in a single pass, a second one collects those blocks, and what is sorted is a hundredth of the row.
`torch.topk` and `logsumexp` read the row about ten times.
"""

from __future__ import annotations

import torch
import triton

from specpilot_sglang.kernels.tree_build.best_kernels import collect_kernel, maxima_kernel

_BLOCK, _BLOCKS = 128, 32


def best_of_vocabulary(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The best `count` tokens of each position, by this module's kernels on a GPU and by torch elsewhere.

    Args:
        logits: float [batch, depth, vocab], rows may be strided.
        count: at most the vocabulary.

    Returns:
        (values float32 [batch, depth, count], tokens int64 of that shape, log-sum-exp float32 [batch, depth, 1]).
    """
    if not logits.is_cuda:
        logits = logits.float()
        best, tokens = logits.topk(count, dim=-1)
        return best, tokens, logits.logsumexp(-1, keepdim=True)
    shape = (*logits.shape[:2], -1)
    best, tokens, whole = best_tokens(logits.flatten(0, 1), count)
    return best.view(shape), tokens.view(shape), whole.view(shape)


def best_tokens(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The best `count` entries of each row in falling order, and the row's log-sum-exp.

    Args:
        logits: float [rows, vocab], rows may be strided.
        count: at most the vocabulary.

    Returns:
        (values float32 [rows, count], tokens int64 [rows, count], normaliser float32 [rows]). Equal entries come in no
        particular order, and which of several equal ones is the last is open, as with `torch.topk`.
    """
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, _BLOCK)
    if 2 * count > blocks:
        values, tokens = logits.float().topk(count, dim=-1)
        return values, tokens, logits.float().logsumexp(-1)
    parts = triton.cdiv(blocks, _BLOCKS)
    maxima = torch.empty(rows, blocks, dtype=torch.float32, device=logits.device)
    tops, sums = torch.empty(2, rows, parts, dtype=torch.float32, device=logits.device)
    maxima_kernel[(rows, parts)](
        logits, logits.stride(0), maxima, tops, sums, vocab, blocks, BLOCK=_BLOCK, BLOCKS=_BLOCKS, num_warps=4
    )
    chosen = maxima.topk(count, dim=-1, sorted=False).indices
    few = torch.empty(rows, count * _BLOCK, dtype=torch.float32, device=logits.device)
    collect_kernel[(rows, count)](logits, logits.stride(0), chosen, few, vocab, K=count, BLOCK=_BLOCK, num_warps=1)
    values, places = few.topk(count, dim=-1)
    tokens = chosen.gather(1, places // _BLOCK) * _BLOCK + places % _BLOCK
    return values, tokens, (tops + sums.log()).logsumexp(-1)
