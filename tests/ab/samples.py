"""Made-up blocks: journals and documents without servers."""

from __future__ import annotations

from pathlib import Path

from specpilot_sglang.eval.ab.block import ArmRun, Block
from specpilot_sglang.eval.ab.durable import sha256_of
from specpilot_sglang.eval.load.results import LoadResult, Sample


def load(ids, tok_s: float, *, tokens: int = 50, gap: float = 0.01, **changes) -> LoadResult:
    """A load whose requests each took `tokens / tok_s` seconds."""
    samples = tuple(Sample(i, "toy", 10, tokens, "text", 0.05, (gap,) * (tokens - 1), 0.5) for i in ids)
    values = {"environment": {"outside_s": 3.0}, "attestation_before": None, "attestation_after": None, **changes}
    return LoadResult(samples, len(ids) * tokens / tok_s, 1, None, None, {}, {}, **values)


def block(root: Path, index: int, speeds: dict[str, float], **changes) -> Block:
    """A finished block whose files are on disk."""
    ids = tuple(f"toy/{index}-{n}" for n in range(3))
    runs = {}
    for position, (name, speed) in enumerate(speeds.items()):
        file = root / "loads" / f"{index:04d}-1-{name}" / "load.json"
        result = load(ids, speed, **changes.get(name, {}))
        result.save(file)
        place = str(file.relative_to(root))
        runs[name] = ArmRun(name, position, ("server",), 1.0, result.duration_s + 2.0, place, sha256_of(file), {})
    return Block(index, runs, ids, "hash", 1, 1000.0 + index, 1001.0 + index, root)
