"""From a preset to what is run in the jail: command, files, mounts and environment."""

from __future__ import annotations

import json
import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources, util
from pathlib import Path

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.agents.settings import AgentSettings
from specpilot_sglang.loop.agents.task import Task, prompt
from specpilot_sglang.loop.jail.bubblewrap import python
from specpilot_sglang.loop.jail.inside import PORT
from specpilot_sglang.loop.jail.spec import PLACEHOLDER

SITE, PROGRAM = "/jail/site", "/jail/claude"
_TOOLS = ("Read", "Edit", "Write", "Glob", "Grep", "Bash")
_REFUSED = ("WebFetch", "WebSearch", "Task", "Bash(git:*)", "Read(//proc/**)", "Edit(//in/**)")


@dataclass(frozen=True)
class Launch:
    """What a preset runs.

    Attributes:
        command: program and arguments inside the jail.
        files: further files of `/in`, name -> text.
        mounts: read-only mounts, destination -> source.
        env: the environment.
        model: whether it talks to a model.
    """

    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, Path] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    model: bool = False


def launch(settings: AgentSettings, task: Task) -> Launch:
    """Return what runs for `task`.

    Raises:
        SpecPilotError: the preset's program or package is not installed.
    """
    if settings.preset == "tuner":
        return _tuner()
    if settings.preset == "claude":
        return _claude(settings, task)
    if settings.preset == "claude-sdk":
        return _sdk(settings, task)
    env = _model_env() if settings.url else {}
    return Launch(settings.command, mounts=_site(), env={**env, "PYTHONPATH": SITE}, model=bool(settings.url))


def find_program(settings: AgentSettings) -> Path:
    """Return the `claude` program: the one that is set, on PATH, or in the SDK's package.

    Raises:
        SpecPilotError: there is none.
    """
    named = settings.program or shutil.which("claude")
    found = Path(named) if named else _bundled()
    if found is None or not found.is_file():
        fix = "install Claude Code, or pip install 'specpilot-sglang[agent]', or set agent.program"
        raise SpecPilotError("the Claude Code command line is not installed", where=named or "claude", fix=fix)
    return found.resolve()


def _tuner() -> Launch:
    missing = [name for name in ("optuna", "ruamel.yaml") if util.find_spec(name) is None]
    if missing:
        fix = "pip install 'specpilot-sglang[loop]'"
        raise SpecPilotError(f"the tuner needs {', '.join(missing)}", where="tuner", fix=fix)
    command = (python(), "-B", "/in/tuner.py")
    return Launch(command, {"tuner.py": _source("tuner.py")}, _site(), {"PYTHONPATH": SITE, "OMP_NUM_THREADS": "1"})


def _claude(settings: AgentSettings, task: Task) -> Launch:
    money = () if settings.caps.usd is None else ("--max-budget-usd", f"{settings.caps.usd:g}")
    model = ("--model", settings.model) if settings.model else ()
    command = (
        *(PROGRAM, "-p", prompt(task), "--output-format", "stream-json", "--verbose", "--permission-mode", "dontAsk"),
        *("--tools", ",".join(_TOOLS), "--settings", "/in/settings.json", "--strict-mcp-config"),
        *("--no-session-persistence", *money, *model),
    )
    files = {"settings.json": _profile(settings), "hook.py": _source("hook.py")}
    return Launch(command, files, {PROGRAM: find_program(settings)}, _model_env(), model=True)


def _sdk(settings: AgentSettings, task: Task) -> Launch:
    if util.find_spec("claude_agent_sdk") is None:
        fix = "pip install 'specpilot-sglang[agent]'"
        raise SpecPilotError("the Claude Agent SDK is not installed", where="claude_agent_sdk", fix=fix)
    job = {
        **{"prompt": prompt(task), "cli": PROGRAM, "model": settings.model, "tools": list(_TOOLS)},
        **{"refused": list(_REFUSED), "tool_calls": settings.tool_calls, "usd": settings.caps.usd},
    }
    files = {"sdk.json": json.dumps(job), "sdk.py": _source("sdk.py")}
    mounts = {**_site(), PROGRAM: find_program(settings)}
    return Launch((python(), "-B", "/in/sdk.py"), files, mounts, {**_model_env(), "PYTHONPATH": SITE}, model=True)


def _profile(settings: AgentSettings) -> str:
    """Return Claude Code's settings: what is allowed without asking, and a hook that counts tool calls."""
    hook = f"{python()} -I -S -B /in/hook.py {settings.tool_calls}"
    return json.dumps(
        {
            "permissions": {"allow": list(_TOOLS), "deny": list(_REFUSED)},
            "hooks": {"PreToolUse": [{"matcher": "*", "hooks": [{"type": "command", "command": hook}]}]},
            "includeCoAuthoredBy": False,
        },
        indent=1,
    )


def _model_env() -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{PORT}",
        "ANTHROPIC_API_KEY": PLACEHOLDER,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


def _site() -> dict[str, Path]:
    """Mount the installed packages: SGLang's source to read, and what the tuner needs."""
    return {SITE: Path(sysconfig.get_path("purelib"))}


def _source(name: str) -> str:
    return (resources.files(__package__) / "inside" / name).read_text(encoding="utf-8")


def _bundled() -> Path | None:
    spec = util.find_spec("claude_agent_sdk")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "_bundled" / "claude"
