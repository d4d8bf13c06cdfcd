"""Run a measurement plan: `python -m specpilot_sglang.eval.gpu.measure PLAN --out DIR [--set NAME=VALUE ...]`.

Starts the plan's servers one after the other, or a group of them side by side; for each it keeps where the start-up
time went, stacks sampled meanwhile, memory lines, decode speed, accept length, recorded answers and the answers of a
few HTTP paths. `DIR/results.json` is rewritten after every group, so that a run cut short keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import time
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

from filelock import FileLock

from specpilot_sglang.eval.gpu.arms import measure_group
from specpilot_sglang.eval.gpu.plan import Plan, load_plan

logger = logging.getLogger(__name__)


def run_plan(plan: Plan, out: Path, only: list[str], lock: Path | None = None, rounds: int = 0) -> list[dict[str, Any]]:
    """Measure the plan's servers (or those named in `only`, by name or group) and return their results.

    Processes that are given the same `lock` take turns: only one of them has requests in flight. With `rounds`, the
    servers of a group are measured in alternation, that many rounds of each load.
    """
    out.mkdir(parents=True, exist_ok=True)
    turn = FileLock(lock or out / ".turn")
    results: list[dict[str, Any]] = []
    chosen = [s for s in plan.servers if not only or {s.name, s.group} & set(only)]
    for group, members in groupby(chosen, key=lambda s: s.group or s.name):
        begin = time.monotonic()
        results += measure_group(plan, list(members), out, turn, rounds)
        logger.info("%s took %.0f s in all", group, time.monotonic() - begin)
        (out / "results.json").write_text(json.dumps(results, indent=1, default=str), encoding="utf-8")
    return results


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # SIGTERM ends like Ctrl-C: servers are stopped and the results so far are written


def main() -> None:
    """Parse the command line and run the plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="value of ${NAME} in the plan")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="measure these servers or groups")
    parser.add_argument("--lock", type=Path, help="file by which several runs on one GPU take turns")
    parser.add_argument("--in-turns", type=int, default=0, metavar="ROUNDS", help="alternate between a group's servers")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    plan = load_plan(args.plan, dict(pair.split("=", 1) for pair in args.set))
    run_plan(plan, args.out, args.only, args.lock, args.in_turns)


if __name__ == "__main__":
    main()
