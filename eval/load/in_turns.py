"""SGLang's benchmark client, waiting for its turn before each request: two clients ask two servers in alternation.

A host with busy neighbours changes its speed every few seconds. Requests to both servers in alternation see the same
host; two loads one after the other do not. The client's code and its timing of a request are SGLang's own: the wait is
over before the request's clock starts. Its duration of the whole run contains the other server's turns and is not used.

    python -m specpilot_sglang.eval.load.in_turns GO DONE [arguments of sglang.benchmark.serving]

GO and DONE are file descriptors: a byte read from GO is a turn, a byte written to DONE ends it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from sglang.benchmark import serving

BACKEND = "sglang-oai-chat"


def wait_before_each_request(go: int, done: int) -> None:
    """Make the client's request function wait for its turn, and say when the answer is there."""
    request = serving.ASYNC_REQUEST_FUNCS[BACKEND]

    async def in_turn(*args: Any, **kwargs: Any) -> Any:
        turn = await asyncio.get_running_loop().run_in_executor(None, os.read, go, 1)
        if not turn:
            raise SystemExit("the other side of the turns is gone")
        try:
            return await request(*args, **kwargs)
        finally:
            os.write(done, b".")

    serving.ASYNC_REQUEST_FUNCS[BACKEND] = in_turn


def main() -> None:
    """Run the client."""
    go, done = int(sys.argv[1]), int(sys.argv[2])
    sys.argv = [serving.__file__, *sys.argv[3:]]
    wait_before_each_request(go, done)
    serving.cli_main()


if __name__ == "__main__":
    main()
