"""Runs the demonstration's servers in turn: start, warm up, measure, force tokens, stop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.demo.outcome import ArmOutcome, Outcome
from specpilot_sglang.eval.demo.plan import Arm, Plan
from specpilot_sglang.eval.forcing import force
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.prompts import Prompt, encode, load_tokenizer
from specpilot_sglang.eval.recording import about_server, greedy, send
from specpilot_sglang.eval.records import Request, Run
from specpilot_sglang.eval.servers import Server
from specpilot_sglang.plugin.deployment import gpu_name

_WARM_UP_TOKENS = 24


class Watcher(Protocol):
    """Hears what happens; the command line draws it."""

    def stage(self, arm: str, what: str, total: int | None) -> None:
        """Note that `arm` begins `what`, with `total` steps if known."""

    def step(self, done: int) -> None:
        """Note that `done` steps of the stage are over."""


@dataclass(frozen=True)
class Prompts:
    """Tokenised prompts of a plan: `timed` are measured, `warm_up` are not and share none with them."""

    timed: list[Prompt]
    warm_up: list[Prompt]


def tokenise(plan: Plan) -> Prompts:
    """Load suites and tokenizer and return the plan's prompts."""
    tokenizer = load_tokenizer(plan.model)
    return Prompts(encode(plan.timed_items(), tokenizer), encode(plan.warm_up_items(), tokenizer))


def run(plan: Plan, watcher: Watcher, logs: Path, *, exact: Plan | None = None) -> Outcome:
    """Run all arms of `plan`, one server at a time, then the float32 pass `exact` where given.

    Raises:
        SpecPilotError: a server does not start, or a model, prompt set or tokenizer is missing. No server is left.
    """
    arms = _run_arms(plan, plan.arms(), watcher, logs)
    strict: Sequence[ArmOutcome] = ()
    if exact is not None:
        wanted = [arm for arm in exact.arms() if arm.name != "stock"]
        strict = _run_arms(exact, wanted, watcher, logs, suffix=" float32")
    return Outcome(arms, plan.dtype, strict)


def _run_arms(plan: Plan, arms: Sequence[Arm], watcher: Watcher, logs: Path, suffix: str = "") -> list[ArmOutcome]:
    prompts = tokenise(plan)
    outcomes: list[ArmOutcome] = []
    with contextlib.ExitStack() as cleanup:

        def begin(arm: Arm) -> _Turn:
            log = logs / f"{arm.name}{suffix.replace(' ', '-')}.log"
            server = Server(arm.args, name=arm.label + suffix, log=log, start_timeout_s=600.0)
            cleanup.callback(server.stop)
            server.launch()
            return _Turn(arm, server, plan, prompts, watcher)

        turn = begin(arms[0])
        for following in [*arms[1:], None]:
            requests = turn.measure()
            # The next server loads while this one's tokens are forced, which is not timed.
            early = begin(following) if following is not None and _fit_side_by_side() else None
            outcomes.append(turn.finish(requests, outcomes[0].requests if outcomes else None))
            if following is not None:
                turn = early or begin(following)
    return outcomes


def _fit_side_by_side() -> bool:
    """Tell whether memory holds two servers: on a GPU each reserves most of it."""
    return gpu_name() == "cpu"


@dataclass(frozen=True)
class _Turn:
    """One server's turn: its launched server is measured, judged and stopped."""

    arm: Arm
    server: Server
    plan: Plan
    prompts: Prompts
    watcher: Watcher

    def measure(self) -> list[Request]:
        self.watcher.stage(self.server.name, "starting the server", None)
        self.server.start()
        client, label = self.server.client, self.server.name
        _warm_up(client, self.prompts.warm_up, self.watcher, label)
        return _measure(client, self.prompts.timed, greedy(self.plan.max_new_tokens), self.watcher, label)

    def finish(self, requests: list[Request], reference: Sequence[Request] | None) -> ArmOutcome:
        server, label = self.server, self.server.name
        forcing = None if reference is None else self._force(reference, requests)
        attestation = server.client.attestation()
        about: dict[str, Any] = about_server(server.client)
        self.watcher.stage(label, "stopping the server", None)
        command, start_s = server.command, server.start_s
        server.stop()
        return ArmOutcome(self.arm.name, label, command, start_s, requests, forcing, attestation, about)

    def _force(self, reference: Sequence[Request], requests: Sequence[Request]) -> ForcingReport:
        self.watcher.stage(self.server.name, "token forcing against AR", len(reference))
        run = Run(greedy(self.plan.max_new_tokens), list(reference))
        first = {r.id: r for r in requests}
        return ForcingReport(force(run, self.server.client, first_pass=first, progress=_steps(self.watcher)))


def _warm_up(client: Client, prompts: Sequence[Prompt], watcher: Watcher, label: str) -> None:
    watcher.stage(label, "warming up", len(prompts))
    for done, prompt in enumerate(prompts, 1):
        send(client, prompt, greedy(_WARM_UP_TOKENS))
        watcher.step(done)
    client.flush_cache()


def _measure(
    client: Client, prompts: Sequence[Prompt], sampling: dict[str, Any], watcher: Watcher, label: str
) -> list[Request]:
    watcher.stage(label, "answering", len(prompts))
    requests = []
    for done, prompt in enumerate(prompts, 1):
        requests.append(send(client, prompt, sampling))
        watcher.step(done)
    client.flush_cache()  # so that token forcing fills the cache by its own path
    return requests


def _steps(watcher: Watcher) -> Callable[[int, int], None]:
    return lambda done, total: watcher.step(done)
