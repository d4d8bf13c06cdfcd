"""The `sglang.srt.plugins` entry point. Imports the standard library only.

SGLang logs and swallows whatever a plugin raises, while loading it too, and then serves stock. So this
module must import under any circumstances, and it ends the process itself when the user asked for the
plugin and something failed.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys

#: Set by users: the plugin's name, or a JSON object / JSON file {"plugin": ..., "overlay": ...}.
ENV_PLUGIN, ENV_OVERLAY, ENV_CONFIG = "SPECPILOT_PLUGIN", "SPECPILOT_OVERLAY", "SPECPILOT_CONFIG"
#: Set by the launching process for its workers; ignored in a process that nobody spawned.
ENV_ACTIVE = "SPECPILOT_ACTIVE"
FLAG_PLUGIN, FLAG_OVERLAY = "--speculative-plugin", "--specpilot-overlay"

logger = logging.getLogger(__name__)


def load() -> None:
    """Run in every SGLang process before it parses arguments or builds anything."""
    worker = multiprocessing.parent_process() is not None
    try:
        if worker:
            from specpilot_sglang.plugin.worker import activate_worker

            activate_worker(os.environ.get(ENV_ACTIVE))
        else:
            from specpilot_sglang.plugin.launcher import install

            install()
    except Exception as exc:
        if asked(worker):
            stop(exc)
        logger.debug("specpilot is not asked for and stays out of the way: %s", exc)


def asked(worker: bool = False) -> bool:
    """Tell whether the user asked for the plugin, from environment and command line alone."""
    if worker:
        return bool(os.environ.get(ENV_ACTIVE))
    flags = (FLAG_PLUGIN, FLAG_OVERLAY)
    on_command_line = any(arg.split("=", 1)[0] in flags for arg in sys.argv[1:])
    return on_command_line or any(os.environ.get(name) for name in (ENV_PLUGIN, ENV_OVERLAY, ENV_CONFIG))


def stop(exc: BaseException) -> None:
    """Print one line to stderr and end this process with exit code 2.

    `SystemExit` passes through SGLang's `except Exception`, so its own clean-up of child processes runs.
    """
    line = exc.line() if hasattr(exc, "line") else f"{type(exc).__name__}: {exc}"
    sys.stderr.write(f"specpilot: error: {' '.join(str(line).split())}\n")
    sys.stderr.flush()
    raise SystemExit(2)
