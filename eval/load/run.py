"""Runs one workload against a running server: guards, cache flush, the benchmark client, guards again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specpilot_sglang.eval.load.results import LoadResult
from specpilot_sglang.eval.servers import Server
from specpilot_sglang.eval.suites import Item


@dataclass(frozen=True)
class Workload:
    """What is asked of a server.

    Attributes:
        items: prompts in the order they are sent.
        max_new_tokens: most tokens an answer.
        concurrency: requests in flight.
        seed: of the client and, at a temperature, of sampling.
        ignore_eos: whether answers go on after the end token.
        temperature: 0 is greedy.
    """

    items: tuple[Item, ...]
    max_new_tokens: int
    concurrency: int
    seed: int = 0
    ignore_eos: bool = False
    temperature: float = 0.0


def run_load(server: Server, workload: Workload, out: Path, *, recorded: bool = True) -> LoadResult:
    """Send `workload` to `server` through `python -m sglang.benchmark.serving` in a process of its own.

    Args:
        server: a started server.
        workload: what to send.
        out: folder for the result, the client's own files and its log.
        recorded: refuse the run, before and after it, when the server or the client is not what the result would
            claim (see `guards`, `client_source`); False keeps the reasons in `environment` instead.

    Raises:
        SpecPilotError: refused, with the reasons; or the client failed.
    """
    raise NotImplementedError
