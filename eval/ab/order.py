"""In which order the two arms of each block run: ABBA, with the first order of each four launches drawn from a seed."""

from __future__ import annotations

import random


def order(index: int, incumbent: str, candidate: str, seed: int) -> tuple[str, str]:
    """Return the arms of block `index` in the order they run.

    Blocks 2k and 2k+1 have opposite orders, so a linear drift of the host cancels within them; which comes first
    is drawn, so that nothing can keep step with it.
    """
    flip = random.Random(f"order {seed} {index // 2}").random() < 0.5
    return (incumbent, candidate) if (index % 2 == 0) != flip else (candidate, incumbent)
