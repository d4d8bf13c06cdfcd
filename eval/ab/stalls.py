"""Rare stalls: what blocks without one can and cannot exclude.

A candidate that is a little faster in most launches and loses much in a few may have no mean gain at all, and show
nothing of it: of launches that stall with probability 0.1, twelve show none in 0.9^12 = 28% of all trials. Whoever
accepts a true 3% gain from twelve such blocks in 90% of all trials must accept this candidate, 2% faster in nine
launches and 20% slower in the tenth, in about 28%: where no launch stalls, both give the same figures. No rule can do
better on so few blocks; only more blocks can.

So how many are needed depends on the gain. `n` launches without a stall exclude, at 3%, that more than
`1 - 0.03^(1/n)` of all launches stall. If a stalled launch loses `size`, stalls unseen cost at most `size` times
that on average, and a mean gain above it cannot be theirs. With a `size` of 0.2 a gain of 10% needs 6 blocks for
this, one of 3% 22, one of 2% 34. Larger losses are not excluded: what is rarer and worse stays unseen longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Error probability of excluding stalls that are there; less than 5%, since some stalls are too small to be seen.
_ALPHA = 0.03


def hidden_loss(blocks: int, size: float) -> float:
    """Return the largest mean loss, as a log ratio, that stalls of `size` may cause and stay unseen in `blocks`."""
    return size * (1 - _ALPHA ** (1 / blocks)) if blocks else math.inf


def excluded(log_ratios: Sequence[float], size: float) -> bool:
    """Return whether stalls of `size` that these blocks did not show cannot make up for their mean gain."""
    return bool(log_ratios) and math.fsum(log_ratios) / len(log_ratios) > hidden_loss(len(log_ratios), size)
