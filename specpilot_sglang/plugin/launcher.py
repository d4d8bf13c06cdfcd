"""The launching process: adds our flags, and activates an overlay when SGLang resolves its arguments.

`ServerArgs.resolve_once` is the one place through which `python -m sglang.launch_server`, `sglang serve`
and `sglang.Engine` all pass, before any worker process exists and while the arguments may still be written.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from typing import Any

from specpilot_sglang import SGLANG_VERSION
from specpilot_sglang.errors import PluginError, SpecPilotError
from specpilot_sglang.patching import PatchSet
from specpilot_sglang.plugin.entry import FLAG_OVERLAY, FLAG_PLUGIN, asked, stop
from specpilot_sglang.plugin.known_sources import around
from specpilot_sglang.plugin.request import PLUGIN_NAME, Request, from_environment, from_flags

_SERVER_ARGS = "sglang.srt.server_args:ServerArgs"


class Launcher:
    """State of the launching process: the request, and the patches that make room for it."""

    def __init__(self) -> None:
        self.request: Request | None = None
        self.from_command_line = False
        self._lock = threading.Lock()
        self.patches = PatchSet(
            [
                around(f"{_SERVER_ARGS}.add_cli_args", self._add_cli_args, "adds the flags"),
                around(f"{_SERVER_ARGS}.from_cli_args", self._from_cli_args, "reads the flags"),
                around(f"{_SERVER_ARGS}.resolve_once", self._resolve_once, "activates the overlay"),
            ],
            installed_sglang_version(),
        )

    def _add_cli_args(self, original: Callable[..., Any], parser: argparse.ArgumentParser) -> Any:
        from sglang.srt.arg_groups.choices import QUANTIZATION_CHOICES

        # The choices of --quantization are read now, before it is known whether the plugin is asked for.
        if "w12" not in QUANTIZATION_CHOICES:
            QUANTIZATION_CHOICES.append("w12")
        result = original(parser)
        group = parser.add_argument_group("SpecPilot")
        group.add_argument(
            FLAG_PLUGIN,
            type=str,
            choices=[PLUGIN_NAME],
            default=None,
            help="Speed up speculative decoding with the SpecPilot plugin; the server stops if it cannot be applied.",
        )
        group.add_argument(
            FLAG_OVERLAY,
            type=str,
            default=None,
            metavar="NAME|PATH|auto|auto-or-stock",
            help="Overlay to apply (default auto: the best match for model, drafter and GPU).",
        )
        return result

    def _from_cli_args(self, original: Callable[..., Any], cls: type, args: argparse.Namespace) -> Any:
        self.from_command_line = True
        try:
            request = from_flags(getattr(args, "speculative_plugin", None), getattr(args, "specpilot_overlay", None))
            self.request = request or from_environment()
            if self.request is None and "w12" in (args.quantization, args.speculative_draft_model_quantization):
                raise PluginError("--quantization w12 comes with the plugin", fix=f"add {FLAG_PLUGIN} {PLUGIN_NAME}")
        except SpecPilotError as exc:
            stop(exc)
        if self.request is None:
            self.undo()  # not asked for: every symbol is SGLang's own again
        return original(cls, args)

    def undo(self) -> None:
        """Put SGLang back as it was."""
        from sglang.srt.arg_groups.choices import QUANTIZATION_CHOICES

        self.patches.undo()
        if "w12" in QUANTIZATION_CHOICES:
            QUANTIZATION_CHOICES.remove("w12")

    def _resolve_once(self, original: Callable[..., Any], server_args: Any) -> Any:
        with self._lock:
            if not getattr(server_args, "_resolution_finished", False):
                self._activate(server_args)
        return original(server_args)

    def _activate(self, server_args: Any) -> None:
        try:
            request = self.request if self.from_command_line else from_environment()
            if request is not None:
                from specpilot_sglang.plugin.activation import activate

                activate(server_args, request)
        except Exception as exc:
            if self.from_command_line:
                stop(exc)
            raise


_launcher: Launcher | None = None


def install() -> Launcher:
    """Install the flags in this process, once.

    Raises:
        PluginError: SGLang is not the version, or not the source, that this plugin knows.
    """
    global _launcher
    if _launcher is None:
        launcher = Launcher()
        if asked():
            check_version()
        launcher.patches.apply()
        _launcher = launcher
    return _launcher


def installed_sglang_version() -> str:
    """Return the installed SGLang release."""
    import sglang

    return str(sglang.__version__)


def check_version() -> None:
    """Refuse any SGLang release but the one that the patches were written against."""
    found = installed_sglang_version()
    if found != SGLANG_VERSION:
        raise PluginError(
            f"SGLang {found} is installed, this plugin knows {SGLANG_VERSION} only",
            fix=f"pip install sglang=={SGLANG_VERSION}",
        )
