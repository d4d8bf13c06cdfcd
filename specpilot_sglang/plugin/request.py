"""What the user asked the plugin for, from flags, environment or JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specpilot_sglang.errors import PluginError
from specpilot_sglang.plugin.entry import ENV_CONFIG, ENV_OVERLAY, ENV_PLUGIN, FLAG_OVERLAY, FLAG_PLUGIN

PLUGIN_NAME = "specpilot"


@dataclass(frozen=True)
class Request:
    """A wish for the plugin.

    Attributes:
        overlay: name, path, `auto` or `auto-or-stock`; None means `auto`.
        source: where it was said, for error messages.
    """

    overlay: str | None
    source: str


def from_flags(plugin: str | None, overlay: str | None) -> Request | None:
    """Return the request made on the command line, None when neither flag was given."""
    if plugin is None and overlay is None:
        return None
    if plugin is None:
        raise PluginError(f"{FLAG_OVERLAY} needs {FLAG_PLUGIN}", fix=f"add {FLAG_PLUGIN} {PLUGIN_NAME}")
    return Request(overlay, FLAG_PLUGIN)


def from_environment(environ: Mapping[str, str] | None = None) -> Request | None:
    """Return the request made by SPECPILOT_PLUGIN/SPECPILOT_OVERLAY or SPECPILOT_CONFIG.

    Raises:
        PluginError: unknown plugin name, unknown key, or JSON that cannot be read.
    """
    environ = os.environ if environ is None else environ
    if config := environ.get(ENV_CONFIG):
        return _from_json(config)
    plugin, overlay = environ.get(ENV_PLUGIN), environ.get(ENV_OVERLAY)
    if not plugin and not overlay:
        return None
    if not plugin:
        raise PluginError(f"{ENV_OVERLAY} needs {ENV_PLUGIN}", fix=f"export {ENV_PLUGIN}={PLUGIN_NAME}")
    return _checked({"plugin": plugin, "overlay": overlay or None}, ENV_PLUGIN)


def _from_json(config: str) -> Request:
    where, text = ENV_CONFIG, config
    if not config.lstrip().startswith("{"):
        where = f"{ENV_CONFIG}={config}"
        try:
            text = Path(config).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise PluginError(f"cannot read the file ({exc})", where=where, fix="give a JSON object or a file") from exc
    try:
        data = json.loads(text)
    except json.JSONDecodeError as exc:
        raise PluginError(
            f"not JSON: {exc.msg} at line {exc.lineno} column {exc.colno}",
            where=where,
            fix='write {"plugin": "specpilot", "overlay": "NAME or PATH"}',
        ) from exc
    return _checked(data, where)


def _checked(data: object, where: str) -> Request:
    fix = f'write {{"plugin": "{PLUGIN_NAME}", "overlay": "NAME or PATH"}}'
    if not isinstance(data, dict) or set(data) - {"plugin", "overlay"}:
        raise PluginError("expected an object with the keys plugin and overlay", where=where, fix=fix)
    if data.get("plugin") != PLUGIN_NAME:
        raise PluginError(f"unknown plugin {data.get('plugin')!r}", where=where, fix=f"the name is {PLUGIN_NAME}")
    overlay = data.get("overlay")
    if overlay is not None and not isinstance(overlay, str):
        raise PluginError(f"overlay must be a string, not {type(overlay).__name__}", where=where, fix=fix)
    return Request(overlay, where)
