"""Runs the blocks of one night, one server at a time, so that a kill at any moment loses no finished block."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.hostlock import host_lock
from specpilot_sglang.eval.nightly.block import BlockResult, read_block
from specpilot_sglang.eval.nightly.config import Config, Deployment
from specpilot_sglang.eval.nightly.folders import BLOCK_FILE, fresh_folder, run_folder
from specpilot_sglang.eval.nightly.history import BlockRow, History, RunRow
from specpilot_sglang.eval.nightly.plan import BlockKey, Pair, block_keys

#: Launches of a block before it counts as failed.
TRIES = 2
#: Why a later round of an arm was left out.
NOT_TRIED = "not tried: an earlier round failed"


@dataclass(frozen=True)
class BlockSpec:
    """What a runner must measure.

    Attributes:
        key: which block.
        config: the night's configuration.
        deployment: the block's deployment.
        pair: its folders.
        reference: AR's recorded answers, for token forcing; None for AR itself.
    """

    key: BlockKey
    config: Config
    deployment: Deployment
    pair: Pair
    reference: Path | None

    @property
    def first(self) -> bool:
        """Whether answers are checked too, not only speed."""
        return self.key.round == 0


class Runner(Protocol):
    """Measures one block on a fresh server."""

    def __call__(self, spec: BlockSpec, folder: Path) -> BlockResult:
        """Measure into `folder`; raise `SpecPilotError` when the server or a load fails."""


class Watcher(Protocol):
    """Hears what happens; the command line draws it."""

    def block(self, key: BlockKey, number: int, total: int, state: str) -> None:
        """Note that block `number` of `total` is `kept`, `begins`, `done` or `failed: ...`."""


@dataclass(frozen=True)
class Night:
    """Everything that was measured: good blocks, and arms that could not be measured with the reason."""

    run: RunRow
    blocks: Mapping[BlockKey, BlockResult]
    failures: Mapping[BlockKey, str]
    notices: tuple[str, ...]

    def of(self, deployment: str, arm: str) -> list[BlockResult]:
        """Return an arm's blocks by round."""
        found = [b for key, b in self.blocks.items() if (key.deployment, key.arm) == (deployment, arm)]
        return sorted(found, key=lambda b: b.key.round)


def locked(history: Path) -> FileLock:
    """Return the taken lock of a history file; raise `SpecPilotError` when another night holds it."""
    lock = FileLock(str(history) + ".lock")
    try:
        history.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise SpecPilotError(
            "another nightly run uses this history", where=history, fix="wait for it, or use another `history:`"
        ) from None
    except OSError as exc:
        fix = "choose a file on a writable local disk (`history:`)"
        raise SpecPilotError(f"cannot lock the history ({exc.strerror})", where=history, fix=fix) from exc
    return lock


def measure_night(
    config: Config,
    history: History,
    run: RunRow,
    out: Path,
    runner: Runner,
    pairs: Callable[[Deployment], Pair],
    watch: Watcher,
    host: Path | None = None,
) -> Night:
    """Measure every block that is not recorded yet and return all of them.

    `host` is a lock file that each block holds, for machines on which other measurements run too.

    Raises:
        SpecPilotError: AR or stock cannot be measured: the night says nothing then. Finished blocks are kept.
    """
    folder = run_folder(out, run.id)
    blocks, notices = _recorded(history, run, out)
    failures: dict[BlockKey, str] = {}
    keys = block_keys(config)
    deployments = {d.name: d for d in config.deployments}
    for number, key in enumerate(keys, 1):
        if key in blocks:
            watch.block(key, number, len(keys), "kept")
            continue
        if any((f.deployment, f.arm) == (key.deployment, key.arm) for f in failures):
            failures[key] = NOT_TRIED
            continue
        deployment = deployments[key.deployment]
        reference = _reference(blocks, key, history, run, out)
        spec = BlockSpec(key, config, deployment, pairs(deployment), reference)
        watch.block(key, number, len(keys), "begins")
        result, reason = _attempts(spec, runner, history, run, folder, out, host)
        watch.block(key, number, len(keys), f"failed: {reason}" if result is None else "done")
        if result is not None:
            blocks[key] = result
        elif key.arm != "specpilot":
            raise SpecPilotError(f"{key.label} could not be measured: {reason}", where=folder, fix="see its server.log")
        else:
            failures[key] = reason
    return Night(run, blocks, failures, tuple(notices))


def _recorded(history: History, run: RunRow, out: Path) -> tuple[dict[BlockKey, BlockResult], list[str]]:
    """Return the run's finished blocks; one whose file is gone or changed is measured again."""
    blocks: dict[BlockKey, BlockResult] = {}
    notices = list(history.notices)
    for row in history.blocks(run.id):
        if row.state != "done":
            continue
        try:
            blocks[row.key] = read_block(out / row.artifact, row.sha256)
        except SpecPilotError as exc:
            blocks.pop(row.key, None)
            notices.append(f"measured again: {exc.line()}")
    return blocks, notices


def _reference(
    blocks: Mapping[BlockKey, BlockResult], key: BlockKey, history: History, run: RunRow, out: Path
) -> Path | None:
    base = blocks.get(BlockKey(key.deployment, "ar", 0))
    if key.arm == "ar" or base is None or not base.reference:
        return None
    row = [r for r in history.blocks(run.id) if r.key == base.key and r.state == "done"][-1]
    return (out / row.artifact).parent / base.reference


def _attempts(
    spec: BlockSpec, runner: Runner, history: History, run: RunRow, folder: Path, out: Path, host: Path | None
) -> tuple[BlockResult | None, str]:
    reason = ""
    for _ in range(TRIES):
        attempt, place = fresh_folder(folder, spec.key, history.blocks(run.id))
        try:
            with host_lock(host):
                begin = time.monotonic()
                result = runner(spec, place)
                result = replace(result, seconds=time.monotonic() - begin)
        except SpecPilotError as exc:
            reason = exc.line()
            history.add_block(run.id, BlockRow(spec.key, attempt, "failed", "", "", reason))
            continue
        # The file is complete before the row that counts it: a kill in between only costs the block.
        sha256 = result.save(place / BLOCK_FILE)
        artifact = (place / BLOCK_FILE).relative_to(out).as_posix()
        history.add_block(run.id, BlockRow(spec.key, attempt, "done", artifact, sha256, ""))
        return result, ""
    return None, reason


def as_row(night: Night) -> dict[str, Any]:
    """Return how complete the night is, for the report."""
    return {
        "run": night.run.id,
        "started_at": night.run.started_at,
        "resumed": night.run.resumed,
        "blocks": len(night.blocks),
        "block_seconds": sum(b.seconds for b in night.blocks.values()),
        "failures": {key.label: reason for key, reason in night.failures.items()},
        "notices": list(night.notices),
    }
