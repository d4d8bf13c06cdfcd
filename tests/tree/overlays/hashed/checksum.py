"""A checksum of what a rank accepts, over all steps: equal on two ranks only if every step of theirs was equal."""

from __future__ import annotations

import zlib
from typing import Any

NAME = "accepted_checksum"


def accepted() -> list[Any]:
    """Return the patch of `tree_step` that adds each step's checksum to a counter."""
    from specpilot_sglang.patching import Kind, Patch, fingerprint
    from specpilot_sglang.plugin import counters
    from specpilot_sglang.tree import step

    counters.declare(NAME)
    steps = 0

    def check(original: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        result = original(*args, **kwargs)
        steps += 1
        told = b"".join(t.cpu().numpy().tobytes() for t in (result.accept_lens, result.next_token_ids))
        counters.hit(NAME, zlib.crc32(told + steps.to_bytes(8, "little")))
        return result

    return [
        Patch(
            "specpilot_sglang.tree.step:tree_step",
            Kind.AROUND,
            check,
            fingerprint(step.tree_step),
            "keeps a checksum of accepted tokens",
        )
    ]
