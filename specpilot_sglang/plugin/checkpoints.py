"""Reads what the plugin must know of a target or drafter from its config.json, without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specpilot_sglang.errors import PluginError


@dataclass(frozen=True)
class Checkpoint:
    """The parts of a Hugging Face config.json that decide whether two models fit together.

    Attributes:
        architecture: first entry of `architectures`.
        config: the whole file.
        text: the language model's part (`text_config` when there is one).
        where: path of the file, for error messages.
    """

    architecture: str
    config: dict[str, Any] = field(repr=False)
    text: dict[str, Any] = field(repr=False)
    where: str

    def number(self, key: str) -> int | None:
        """Return an integer of the language model's config, None when absent."""
        value = self.text.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_checkpoint(path: str, role: str, revision: str | None = None) -> Checkpoint:
    """Read the config of a local folder or of a hub repository.

    Args:
        path: local folder or hub id, as given to SGLang.
        role: flag it came from, for error messages.
        revision: hub revision.

    Raises:
        PluginError: the folder, its config.json or the `architectures` entry is missing or malformed.
    """
    file = _config_file(path, role, revision)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as exc:
        raise PluginError(
            f"cannot be read as JSON ({exc})", where=file, fix=f"repair it or point {role} elsewhere"
        ) from exc
    architectures = config.get("architectures") if isinstance(config, dict) else None
    if not (isinstance(architectures, list) and architectures and isinstance(architectures[0], str)):
        raise PluginError("has no `architectures` list", where=file, fix="add the model's class name to it")
    text = config.get("text_config")
    return Checkpoint(architectures[0], config, text if isinstance(text, dict) else config, str(file))


def _config_file(path: str, role: str, revision: str | None) -> Path:
    folder = Path(path).expanduser()
    if folder.exists():
        file = folder / "config.json"
        if not file.is_file():
            raise PluginError("no config.json in this folder", where=folder, fix=f"point {role} to a model folder")
        return file
    looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1
    if looks_local:
        raise PluginError("no such folder", where=path, fix=f"point {role} to a model folder or a hub id")
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(path, "config.json", revision=revision))
    except Exception as exc:  # the hub client raises many kinds; all mean "not to be had"
        raise PluginError(
            f"neither a folder nor a hub repository that can be reached ({type(exc).__name__})",
            where=path,
            fix=f"download the model and point {role} to its folder",
        ) from exc
