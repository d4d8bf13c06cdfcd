"""Blocks survive a kill at any point, are never run or counted twice, and failures are kept apart."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import ClassVar

import pytest
from samples import block, load

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab import durable
from specpilot_sglang.eval.ab.block import Block
from specpilot_sglang.eval.ab.failures import MOST_KILLS, CandidateFailedError, InfrastructureError
from specpilot_sglang.eval.ab.journal import Journal
from specpilot_sglang.eval.ab.measure import log_ratios, noise_of, run_trial
from specpilot_sglang.eval.ab.noise import Noise
from specpilot_sglang.eval.ab.rule import Action, Rule
from specpilot_sglang.eval.ab.run import Experiment, iterate, run_blocks
from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.load.guards import RunRefusedError
from specpilot_sglang.eval.load.results import load_result
from specpilot_sglang.eval.load.run import Workload
from specpilot_sglang.eval.suites import Item

STOCK, CANDIDATE = Arm("stock", ("--a",)), Arm("candidate", ("--b",))


class Killed(BaseException):
    """What SIGKILL looks like to the code under test: nothing is cleaned up after it."""


class FakeServer:
    command = ("server",)
    start_s = 1.0
    was_killed = False

    def __init__(self, arm: Arm, log) -> None:
        self.arm, self.name = arm, arm.name

    def __enter__(self):
        return self

    def __exit__(self, *args):
        pass


class WatchedServer(FakeServer):
    """Writes down what is done to it; `broken` does not start."""

    events: ClassVar[list[tuple[str, str]]] = []
    broken = ""

    def processes(self):
        return []

    def __getattr__(self, name: str):
        def note() -> None:
            if (name, self.name) == ("start", self.broken):
                raise SpecPilotError("did not start")
            self.events.append((name, self.name))

        if name not in ("launch", "start", "pause", "resume", "stop"):
            raise AttributeError(name)
        return note


class Lab:
    """An experiment on fake servers; `fail` maps the number of a load to what it raises."""

    def __init__(self, root, speeds=(100.0, 110.0)) -> None:
        self.root, self.speeds, self.loads, self.fail = (
            root,
            dict(zip(("stock", "candidate"), speeds, strict=True)),
            0,
            {},
        )

    def send(self, server, workload, folder):
        self.loads += 1
        if self.loads in self.fail:
            raise self.fail[self.loads]
        ids = [item.id for item in workload.items]
        load(ids, self.speeds[server.name] * (1 + 0.001 * (self.loads % 5))).save(folder / "load.json")

    def experiment(self, **changes) -> Experiment:
        def prompts(index):
            return Workload(tuple(Item(f"toy/{index}-{n}", "toy", f"{index} {n}") for n in range(3)), 8, 1)

        values = {"launch": FakeServer, "load": self.send, "seed": 4, **changes}
        return Experiment(STOCK, CANDIDATE, values.pop("prompts", prompts), self.root, **values)


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path / "exp")


def test_blocks_are_on_disk_before_they_are_counted_and_read_back_the_same(lab):
    done = run_blocks(lab.experiment(), 3)
    again = Journal(lab.root).blocks()
    assert again == done
    assert log_ratios(again, "stock", "candidate") == log_ratios(done, "stock", "candidate")
    assert run_blocks(lab.experiment(), 3) == done
    assert lab.loads == 6


@pytest.mark.parametrize("at", range(1, 25))
def test_killed_at_any_write_it_resumes_and_loses_no_finished_block(lab, monkeypatch, at):
    """Every system call that makes a write durable is a point at which the power may go."""
    calls = 0

    def dying(real):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == at:
                raise Killed
            return real(*args, **kwargs)

        return call

    finished = []
    with monkeypatch.context() as patch:
        patch.setattr(durable.os, "fsync", dying(os.fsync))
        patch.setattr(durable.Path, "replace", dying(durable.Path.replace))
        try:
            stream = iterate(lab.experiment())
            for _ in range(3):
                finished.append(next(stream))
        except Killed:
            pass
        stream.close()
    blocks = run_blocks(lab.experiment(), 3)
    assert blocks[: len(finished)] == finished
    assert [b.index for b in blocks] == [0, 1, 2]
    assert [list(b.runs) for b in blocks] == [
        list(b.runs) for b in run_blocks(Lab(lab.root.parent / "other").experiment(), 3)
    ]


def test_killed_in_a_load_the_block_is_run_again_from_its_start(lab):
    lab.fail = {4: Killed()}
    with pytest.raises(Killed):
        run_blocks(lab.experiment(), 2)
    assert [b.index for b in Journal(lab.root).blocks()] == [0]
    (lab.root / "loads" / "0001-1-stock" / "half").mkdir(parents=True, exist_ok=True)
    done = run_blocks(lab.experiment(), 2)
    assert (done[1].attempt, lab.loads) == (1, 6)
    assert not (lab.root / "loads" / "0001-1-stock" / "half").exists()


def test_infrastructure_failure_is_tried_once_more_and_recorded(lab):
    lab.fail = {1: SpecPilotError("the port was taken")}
    assert run_blocks(lab.experiment(), 1)[0].attempt == 2
    (failure,) = Journal(lab.root).failures()
    assert (failure["blame"], failure["reasons"]) == ("infrastructure", ["the port was taken"])
    lab.fail = {lab.loads + 1: OSError("disk full"), lab.loads + 2: OSError("disk full")}
    with pytest.raises(InfrastructureError, match="failed 2 times"):
        run_blocks(lab.experiment(), 2)
    assert len(run_blocks(lab.experiment(), 2)) == 2  # a later start goes on


def loads_of(name: str, lab: Lab) -> int:
    """The number of the first load that `name` gets."""
    seen = []
    probe = Lab(lab.root.parent / "probe")
    probe.send = lambda server, workload, folder: (
        seen.append(server.name),
        load(["x"], 1.0).save(folder / "load.json"),
    )
    run_blocks(probe.experiment(load=probe.send), 1)
    return seen.index(name) + 1


def test_refused_candidate_counts_against_it_and_stays_refused(lab):
    refused = RunRefusedError("before", ["simulation in the environment"], where="candidate")
    lab.fail = {loads_of("candidate", lab): refused}
    with pytest.raises(CandidateFailedError, match="simulation in the environment") as caught:
        run_blocks(lab.experiment(), 1)
    assert caught.value.reasons == ("simulation in the environment",)
    loads = lab.loads
    lab.fail = {}
    with pytest.raises(CandidateFailedError):
        run_blocks(lab.experiment(), 1)
    assert lab.loads == loads


def test_refused_incumbent_never_counts_against_the_candidate(lab):
    refused = RunRefusedError("before", ["simulation in the environment"], where="stock")
    lab.fail = {loads_of("stock", lab): refused}
    assert len(run_blocks(lab.experiment(), 1)) == 1
    assert Journal(lab.root).failures()[0]["blame"] == "infrastructure"


def test_candidate_that_fails_twice_is_to_blame(lab):
    lab.send = lambda server, workload, folder: crash(server) or load(["x"], 1.0).save(folder / "load.json")

    def crash(server):
        if server.name == "candidate":
            raise SpecPilotError("the server went away")

    with pytest.raises(CandidateFailedError, match="went away"):
        run_blocks(lab.experiment(load=lab.send), 1)
    assert [f["blame"] for f in Journal(lab.root).failures()] == ["infrastructure", "candidate"]


@pytest.mark.parametrize("kills", [2, MOST_KILLS, MOST_KILLS + 2])
def test_a_server_that_is_killed_is_not_to_blame_unless_it_always_is(lab, kills):
    left = {"candidate": kills}

    class Mortal(FakeServer):
        was_killed = True

    def send(server, workload, folder):
        if left.get(server.name):
            left[server.name] -= 1
            raise SpecPilotError("the server went away")
        lab.send(server, workload, folder)

    experiment = lab.experiment(load=send, launch=Mortal)
    if kills <= MOST_KILLS:
        assert run_blocks(experiment, 1)[0].attempt == kills + 1
        assert {f["kind"] for f in Journal(lab.root).failures()} == {"ServerKilledError"}
        return
    with pytest.raises(CandidateFailedError, match="the server went away"):
        run_blocks(experiment, 1)


def test_other_settings_in_the_same_folder_are_refused(lab):
    run_blocks(lab.experiment(), 1)
    with pytest.raises(SpecPilotError, match="another experiment: seed differ"):
        run_blocks(lab.experiment(seed=5), 1)
    changed = replace(lab.experiment(), candidate=replace(CANDIDATE, args=("--c",)))
    with pytest.raises(SpecPilotError, match="candidate differ"):
        run_blocks(changed, 1)


def test_two_processes_cannot_run_one_experiment(lab):
    stream = iterate(lab.experiment())
    next(stream)
    with pytest.raises(SpecPilotError, match="another process"):
        run_blocks(lab.experiment(), 1)
    stream.close()


def test_result_that_was_changed_afterwards_is_refused(lab):
    (done,) = run_blocks(lab.experiment(), 1)
    file = lab.root / done.runs["candidate"].load_file
    file.write_text(file.read_text().replace('"duration_s": ', '"duration_s": 0'))
    with pytest.raises(SpecPilotError, match="changed afterwards"):
        log_ratios(Journal(lab.root).blocks(), "stock", "candidate")


def test_damaged_or_missing_block_is_reported_never_skipped(lab):
    run_blocks(lab.experiment(), 3)
    second = lab.root / "blocks" / "0001.json"
    text = second.read_text()
    second.write_text(text[: len(text) // 2])
    with pytest.raises(SpecPilotError, match=r"0001\.json"):
        Journal(lab.root).blocks()
    second.unlink()
    with pytest.raises(SpecPilotError, match="missing"):
        run_blocks(lab.experiment(), 3)


def test_trial_stops_at_its_decision(lab):
    noise = Noise((0.001, -0.001) * 4, {m: (0.5, -0.5) * 4 for m in ("ttft_p99_s", "itl_p99_s")})
    trial = run_trial(lab.experiment(), noise, Rule())
    assert (trial.accepted, trial.decision.blocks, lab.loads) == (True, 8, 16)
    slower = Lab(lab.root.parent / "slower", (100.0, 90.0))
    trial = run_trial(slower.experiment(), noise, Rule())
    assert (trial.accepted, trial.decision.blocks) == (False, 2)
    assert trial.decision.action is Action.REJECT


def test_noise_and_reversed_roles_come_from_the_same_blocks(tmp_path):
    blocks = [block(tmp_path, n, {"a": 100.0, "b": 100.0 + n % 3}) for n in range(9)]
    noise = noise_of(blocks, "a", "b", host="h", regime="r")
    assert noise.log_ratios == tuple(log_ratios(blocks, "a", "b"))
    assert noise.spread.mean > 0
    assert log_ratios(blocks, "b", "a") == pytest.approx([-value for value in noise.log_ratios])


def test_block_round_trip(tmp_path):
    one = block(tmp_path, 0, {"a": 100.0, "b": 90.0})
    assert Block.from_json(json.loads(json.dumps(one.to_json())), tmp_path) == one


@pytest.mark.parametrize("concurrency", [1, 2])
def test_servers_that_are_up_together_are_asked_in_turns_or_stopped_while_the_other_one_is_measured(
    tmp_path, monkeypatch, concurrency
):
    monkeypatch.setattr(WatchedServer, "events", events := [])
    lab = Lab(tmp_path)
    send = lab.send

    def measured(server, workload, folder):
        events.append(("load", server.name))
        return send(server, workload, folder)

    def in_turns(servers, workload, folders, watch):
        events.append(("pair", servers[0].name))
        for server, folder in zip(servers, folders, strict=True):
            send(server, workload, folder)
        return [load_result(folder / "load.json") for folder in folders]

    def prompts(index):
        return Workload(tuple(Item(f"toy/{index}-{n}", "toy", f"{index} {n}") for n in range(3)), 8, concurrency)

    asked = {"launch": WatchedServer, "load": measured, "pair": in_turns, "prompts": prompts, "together": True}
    run_blocks(lab.experiment(**asked), 1)
    up, rest = events[:4], events[4:]
    first, second = (name for what, name in up[:2])
    assert up == [("launch", first), ("launch", second), ("start", first), ("start", second)]
    if concurrency == 1:
        assert rest[0] == ("pair", first)
        assert "load" not in dict(rest)
    else:
        turns = [("resume", first), ("load", first), ("resume", second), ("load", second)]
        assert rest[:6] == [("pause", first), ("pause", second), *turns]


def test_an_arm_whose_turn_fails_is_the_one_that_is_blamed(tmp_path, monkeypatch):
    monkeypatch.setattr(WatchedServer, "events", [])

    def in_turns(servers, workload, folders, watch):
        watch(next(server for server in servers if server.name == "candidate"))
        raise SpecPilotError("the benchmark client ended in its turn")

    asked = {"launch": WatchedServer, "pair": in_turns, "together": True}
    with pytest.raises(CandidateFailedError):
        run_blocks(Lab(tmp_path).experiment(**asked), 1)


def test_an_arm_that_does_not_load_beside_the_other_one_is_the_one_that_is_blamed(tmp_path, monkeypatch):
    monkeypatch.setattr(WatchedServer, "events", events := [])
    monkeypatch.setattr(WatchedServer, "broken", "candidate")
    with pytest.raises(CandidateFailedError):
        run_blocks(Lab(tmp_path).experiment(launch=WatchedServer, together=True), 1)
    assert {name for what, name in events if what == "stop"} == {"stock", "candidate"}
