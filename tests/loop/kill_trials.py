"""Trials of the loop that is killed: real blocks, jailed servers that are processes of their own but answer at once."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from loop_trials import SPEED, block_of

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.durable import append_line
from specpilot_sglang.eval.ab.failures import CandidateFailedError
from specpilot_sglang.eval.ab.journal import Journal
from specpilot_sglang.eval.ab.run import Experiment, run_blocks
from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.load.results import LoadResult, Sample
from specpilot_sglang.eval.load.run import Workload
from specpilot_sglang.eval.suites import Item
from specpilot_sglang.loop.jail.server import JailedServer
from specpilot_sglang.loop.judge.verdict import Status, Verdict, failed, passed

BLOCKS = 2
#: On the command line of every toy server, so that a killer finds it.
SERVER = "specpilot-toy-server"
_SERVE = """
import socket, sys, time
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen(64)
while True:
    client, _ = server.accept()
    asked = client.recv(65536)
    if b"/server_info" in asked:
        time.sleep(float(sys.argv[2]))
    client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\n{}")
    client.close()
"""


class ToyProcess(JailedServer):
    """A server under test in its jail, as far as processes go."""

    @property
    def command(self):
        run = [sys.executable, "-I", "-S", "-c", _SERVE, str(self.port), os.environ.get("FAKE_S", "0"), SERVER]
        return [*self._walls, *run]


def trial(settings, incumbent, candidate, folder, state):
    """Runs the blocks of a trial; leaves a line for each time that it really ran to its end."""
    arms = [Arm(n, (), overlay=path) for n, path in (("incumbent", incumbent), ("candidate", candidate))]

    def prompts(index):
        return Workload((Item(f"toy/{index}", "toy", str(index)),), 8, 1)

    def launch(arm, log):
        return ToyProcess(arm, log, Path(state))

    experiment = Experiment(*arms, prompts, Path(folder) / "evidence", launch=launch, load=load)
    try:
        run_blocks(experiment, BLOCKS)
    except CandidateFailedError:
        return {"status": "failed", "seconds": 1.0, "host": "toy"}
    append_line(Path(state) / "ran.jsonl", {"trial": Path(folder).name})
    gain = math.log(gain_of(Path(folder)))
    return {"status": "accepted" if gain > 0.01 else "no_gain", "seconds": 1.0, "host": "toy"}


def load(server, workload, folder):
    """Asks twice, so that a server can die in between; the speed is what the overlay's block size gives."""
    for _ in range(2):
        server.client.server_info()
    overlay = server.args[server.args.index("--specpilot-overlay") + 1]
    seconds = math.exp(-SPEED[block_of(Path(overlay))])
    sample = Sample(workload.items[0].id, "toy", 4, 50, "text", 0.01, (0.01,) * 49, 0.5)
    LoadResult((sample,), seconds, 1, None, None, {}, {}, None, None).save(folder / "load.json")


def gain_of(folder):
    blocks = Journal(folder / "evidence").blocks()
    if len(blocks) < BLOCKS:
        raise SpecPilotError("a trial without all of its blocks", where=folder)
    ratios = {round(math.exp(block.log_ratio("incumbent", "candidate")), 6) for block in blocks}
    assert len(ratios) == 1
    return ratios.pop()


def rejudge(folder):
    if any(row["blame"] == "candidate" for row in Journal(folder / "evidence").failures()):
        verdict = Verdict.of([failed("errors", Status.FAILED, ["it was killed"])])
        return verdict, {"log_gain": None, "confirmed": None, "lower": None, "blocks": 0}
    gain = math.log(gain_of(folder))
    gate = passed("gain") if gain > 0.01 else failed("gain", Status.NO_GAIN, ["no gain"])
    return Verdict.of([gate]), {"log_gain": gain, "confirmed": gain, "lower": gain - 0.01, "blocks": BLOCKS}
