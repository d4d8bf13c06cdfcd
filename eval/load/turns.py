"""One workload on two servers at the same time, request by request in turns: the host's speed is common to both.

Requests of a pair follow each other at once, and which server goes first alternates (ABBA). Speed is tokens over the
sum of the requests' own times, so that waiting for a turn counts for neither.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.load import command
from specpilot_sglang.eval.load.process import OutsideClock, run_client
from specpilot_sglang.eval.load.workload import Workload

_MODULE = "specpilot_sglang.eval.load.in_turns"
_LOOK_S = 0.5


@dataclass
class Client:
    """One server's client: its command, and the two ends of each pipe it takes turns by."""

    name: str
    command: list[str]
    folder: Path
    go: tuple[int, int] = field(default_factory=os.pipe)
    done: tuple[int, int] = field(default_factory=os.pipe)

    def line(self) -> list[str]:
        """The command with the module that waits in place of SGLang's own."""
        at = self.command.index("sglang.benchmark.serving")
        return [*self.command[:at], _MODULE, str(self.go[0]), str(self.done[1]), *self.command[at + 1 :]]

    def run(self, timeout_s: float) -> OutsideClock:
        """Run the client to its end; it keeps the only copy of its ends of the pipes."""
        passed = (self.go[0], self.done[1])
        return run_client(self.line(), command.client_environment(), self.folder / "client.log", timeout_s, passed)

    def close(self) -> None:
        """Close our ends."""
        os.close(self.go[1])
        os.close(self.done[0])


def run_in_turns(
    clients: Sequence[Client], workload: Workload, timeout_s: float, watch: Callable[[int], None]
) -> list[OutsideClock]:
    """Run both clients beside each other, one request at a time, and return what our clock saw of each.

    `watch` hears whose turn it is.

    Raises:
        SpecPilotError: more than one request at a time is asked for, or a client failed or took longer than
            `timeout_s`.
    """
    if workload.concurrency != 1:
        fix = "set load.concurrency: 1, or together: false"
        raise SpecPilotError("turns are of one request at a time", where="load.concurrency", fix=fix)
    with ThreadPoolExecutor(len(clients)) as pool:
        running = [pool.submit(client.run, timeout_s) for client in clients]
        try:
            deadline = time.monotonic() + timeout_s
            for index in _order(len(clients), len(workload.items)):
                watch(index)
                _turn(clients[index], running[index], running, deadline)
        finally:
            for client in clients:
                client.close()  # a client that still waits ends
    return [future.result() for future in running]


def _order(clients: int, requests: int) -> Iterator[int]:
    for number in range(requests):
        yield from range(clients) if number % 2 == 0 else reversed(range(clients))


def _turn(client: Client, mine: Future[OutsideClock], running: Sequence[Future[OutsideClock]], deadline: float) -> None:
    """Give the client a turn and wait until it is over; raise when it has ended, another one failed or time is up.

    Another client that has ended well had its last turn: the last answer of a slow server may take longer than that.
    """
    os.write(client.go[1], b".")
    while not select.select([client.done[0]], [], [], _LOOK_S)[0]:
        for future in running:
            if future.done():
                future.result()
        if mine.done():
            raise SpecPilotError(f"{client.name}: the benchmark client ended before its turn was over")
        if time.monotonic() > deadline:
            raise SpecPilotError(f"{client.name}: a turn was not over in time", where=client.folder)
    if not os.read(client.done[0], 1):
        raise SpecPilotError(f"{client.name}: the benchmark client ended in its turn", where=client.folder)
