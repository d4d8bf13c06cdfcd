"""Runs blocks with real servers: crash-safe, resumable, infrastructure failures tried once more."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.block import ArmRun, Block
from specpilot_sglang.eval.ab.durable import sha256_of
from specpilot_sglang.eval.ab.failures import (
    MOST_KILLS,
    Blame,
    CandidateFailedError,
    InfrastructureError,
    ServerKilledError,
    blame,
    reasons_of,
)
from specpilot_sglang.eval.ab.hostlock import host_lock
from specpilot_sglang.eval.ab.journal import Journal
from specpilot_sglang.eval.ab.order import order
from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.cores import share_cores
from specpilot_sglang.eval.load.results import LoadResult
from specpilot_sglang.eval.load.run import Workload, run_load, run_pair
from specpilot_sglang.eval.provenance import gpu_names
from specpilot_sglang.eval.servers import Server

ATTEMPTS = 2

#: Block index -> the prompts of both arms; blocks must share none.
Prompts = Callable[[int], Workload]
#: Takes further evidence on a running server after its load: (server, arm, block index, folder) -> JSON values.
After = Callable[[Server, Arm, int, Path], Mapping[str, Any]]


#: (arm, log file) -> the arm's server.
Launch = Callable[[Arm, Path], Server]
#: (server, workload, folder) -> what was measured.
Load = Callable[[Server, Workload, Path], LoadResult]
#: (servers, workload, a folder each, hears whose turn it is to be looked at) -> what was measured of each.
Pair = Callable[..., list[LoadResult]]


def launch_here(arm: Arm, log: Path) -> Server:
    """Return the arm's server on this host."""
    return arm.server(log=log)


def _quiet(event: str, **facts: Any) -> None:
    """Hear nothing."""


@dataclass(frozen=True)
class Experiment:
    """What is compared and how.

    Attributes:
        incumbent: the arm that is there; named before the candidate in every ratio.
        candidate: the arm under test; for an A/A the same settings under another name.
        prompts: workload of each block.
        root: the journal's folder.
        seed: of the order of arms.
        about: further JSON values that identify the experiment, such as regime and host.
        after: takes further evidence on each server after its load.
        lock: file that is locked for the length of each block, so that one host runs one block at a time.
        watch: called with an event's name and facts.
        launch: makes an arm's server that logs to a file, not started yet.
        load: sends a workload to a started server and leaves `load.json` in the folder.
        together: both servers of a block are up at the same time, for hosts that have room for both: single requests
            go to them in turns; a load of more at a time goes to one after the other while the other one is stopped.
        pair: sends a workload to two started servers in turns.
    """

    incumbent: Arm
    candidate: Arm
    prompts: Prompts
    root: Path
    seed: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)
    after: After | None = None
    lock: Path | None = None
    watch: Callable[..., None] = _quiet
    launch: Launch = launch_here
    load: Load = run_load
    together: bool = False
    pair: Pair = run_pair

    def __post_init__(self) -> None:
        if self.incumbent.name == self.candidate.name:
            raise SpecPilotError("both arms have the same name", where=self.incumbent.name, fix="rename one")

    @property
    def identity(self) -> dict[str, Any]:
        """What a resumed experiment must have in common with the one that was started."""
        arms = {"incumbent": self.incumbent.to_json(), "candidate": self.candidate.to_json()}
        first = self.prompts(0).about()
        return {**arms, "seed": self.seed, "first_block": first, "about": dict(self.about)}


def run_blocks(experiment: Experiment, count: int) -> list[Block]:
    """Return the first `count` blocks, those that are finished already included; see `iterate`."""
    blocks = iterate(experiment)
    return [next(blocks) for _ in range(count)]


def iterate(experiment: Experiment) -> Iterator[Block]:
    """Yield block after block without end: those in the journal first, then newly run ones.

    A block is in the journal, on disk, before it is yielded. Stop asking when there is a decision.

    Raises:
        CandidateFailedError: now or before a restart, the candidate could not be measured by its own fault.
        InfrastructureError: a block failed twice otherwise; start again to go on.
        SpecPilotError: the folder holds another experiment, or another process runs it.
    """
    with Journal(experiment.root, experiment.identity) as journal:
        _refuse_failed(journal)
        done = journal.blocks()
        yield from done
        index = len(done)
        while True:
            yield _run_block(experiment, journal, index)
            index += 1


def _refuse_failed(journal: Journal) -> None:
    for failure in journal.failures():
        if failure.get("blame") == Blame.CANDIDATE:
            raise _candidate_failed(failure, journal.root)


def _run_block(experiment: Experiment, journal: Journal, index: int) -> Block:
    """Run one block, twice at most unless servers are killed, and put it into the journal."""
    before: dict[str, Any] | None = None
    left = ATTEMPTS
    while left:
        arm, servers, earlier = "", list[Server](), [f for f in journal.failures() if f.get("block") == index]
        attempt, kills = len(earlier) + 1, sum(f["kind"] == ServerKilledError.__name__ for f in earlier)
        try:
            with host_lock(experiment.lock):
                for arm_or_block in _attempt(experiment, index, attempt, servers):
                    if isinstance(arm_or_block, Block):
                        journal.add(arm_or_block)
                        experiment.watch("block", block=arm_or_block)
                        return arm_or_block
                    arm = arm_or_block
        except (SpecPilotError, OSError) as exc:
            if any(server.was_killed for server in servers) and kills < MOST_KILLS:
                killed = ServerKilledError(f"a server was killed ({reasons_of(exc)[0]})")
                _note(experiment, journal, killed, Blame.INFRASTRUCTURE, index=index, attempt=attempt, arm=arm)
                continue
            before = _record(experiment, journal, exc, index=index, attempt=attempt, arm=arm, before=before)
            left -= 1
    assert before is not None
    raise InfrastructureError(
        f"block {index} failed {ATTEMPTS} times, last: {before['reasons'][0]}",
        where=journal.root / "failures.jsonl",
        fix="repair it and start again: finished blocks are kept",
    )


def _record(
    experiment: Experiment,
    journal: Journal,
    error: SpecPilotError | OSError,
    *,
    index: int,
    attempt: int,
    arm: str,
    before: dict[str, Any] | None,
) -> dict[str, Any]:
    who = blame(
        error,
        candidate=arm == experiment.candidate.name,
        before=Blame(before["blame"]) if before else None,
        repeated=bool(before and before["arm"] == arm),
    )
    failure = _note(experiment, journal, error, who, index=index, attempt=attempt, arm=arm)
    if who is Blame.CANDIDATE:
        raise _candidate_failed(failure, journal.root) from error
    return failure


def _note(
    experiment: Experiment,
    journal: Journal,
    error: SpecPilotError | OSError,
    who: Blame,
    *,
    index: int,
    attempt: int,
    arm: str,
) -> dict[str, Any]:
    failure = {
        **{"block": index, "attempt": attempt, "arm": arm, "blame": who.value, "kind": type(error).__name__},
        **{"reasons": list(reasons_of(error)), "folder": _folder(index, attempt, arm), "time": time.time()},
    }
    journal.fail(**failure)
    experiment.watch("failure", **failure)
    return failure


def _candidate_failed(failure: Mapping[str, Any], root: Path) -> CandidateFailedError:
    reasons = tuple(failure["reasons"])
    return CandidateFailedError(
        f"the candidate failed in block {failure['block']}: {'; '.join(reasons)}", reasons, where=str(root)
    )


def _attempt(experiment: Experiment, index: int, attempt: int, made: list[Server]) -> Iterator[str | Block]:
    """Yield an arm's name before what is done for it, and the block at the end; add each server to `made`."""
    workload, began = experiment.prompts(index), time.time()
    arms = {arm.name: arm for arm in (experiment.incumbent, experiment.candidate)}
    names = order(index, experiment.incumbent.name, experiment.candidate.name, experiment.seed)
    runs: dict[str, ArmRun] = {}
    with contextlib.ExitStack() as opened:
        servers: dict[str, Server] = {}
        if experiment.together:
            for name in names:
                made.append(_server(experiment, arms[name], index, attempt))
                servers[name] = made[-1]
                opened.callback(servers[name].stop)
                servers[name].launch()
            for name in names:
                yield name
                servers[name].start()
        sent: Mapping[str, LoadResult] = {}
        if servers and workload.concurrency == 1:
            if not gpu_names():
                share_cores(servers.values())
            sent = yield from _send_in_turns(experiment, servers, workload, index, attempt)
        else:
            for server in servers.values():
                server.pause()
        for position, name in enumerate(names):
            yield name
            experiment.watch("arm", block=index, arm=name, attempt=attempt)
            if experiment.together:
                servers[name].resume()
            else:
                made.append(_server(experiment, arms[name], index, attempt))
            with servers.get(name, made[-1]) as server:
                runs[name] = _run_arm(
                    experiment, arms[name], server, workload, index, attempt, position, sent.get(name)
                )
    items = tuple(item.id for item in workload.items)
    yield Block(index, runs, items, prompts_hash(workload), attempt, began, time.time(), experiment.root)


def _server(experiment: Experiment, arm: Arm, index: int, attempt: int) -> Server:
    """Return the arm's server, not started, and an empty folder for what it leaves."""
    folder = experiment.root / _folder(index, attempt, arm.name)
    shutil.rmtree(folder, ignore_errors=True)  # what a killed attempt left
    folder.mkdir(parents=True)
    return experiment.launch(arm, folder / "server.log")


def _send_in_turns(
    experiment: Experiment, servers: Mapping[str, Server], workload: Workload, index: int, attempt: int
) -> Generator[str, None, dict[str, LoadResult]]:
    """Send the load to both servers and return each one's result; yield the arm's name that an error is about."""
    looked_at: list[str] = []
    folders = [experiment.root / _folder(index, attempt, name) for name in servers]
    try:
        sent = experiment.pair(list(servers.values()), workload, folders, watch=lambda at: looked_at.append(at.name))
    except (SpecPilotError, OSError):
        if looked_at:
            yield looked_at[-1]
        raise
    return dict(zip(servers, sent, strict=True))


def _run_arm(
    experiment: Experiment,
    arm: Arm,
    server: Server,
    workload: Workload,
    index: int,
    attempt: int,
    position: int,
    sent: LoadResult | None,
) -> ArmRun:
    name = _folder(index, attempt, arm.name)
    folder = experiment.root / name
    begin = time.monotonic()
    if sent is None:
        experiment.load(server, workload, folder)
        outside_s = time.monotonic() - begin
    else:
        outside_s = float(sent.environment["outside_s"])
    extra = dict(experiment.after(server, arm, index, folder)) if experiment.after else {}
    file = folder / "load.json"
    command = tuple(server.command)
    return ArmRun(arm.name, position, command, server.start_s, outside_s, f"{name}/load.json", sha256_of(file), extra)


def prompts_hash(workload: Workload) -> str:
    """Return a hash over the prompts' texts, in order."""
    return hashlib.sha256(json.dumps([item.text for item in workload.items]).encode()).hexdigest()


def _folder(index: int, attempt: int, arm: str) -> str:
    return f"loads/{index:04d}-{attempt}-{arm}"
