"""Runs the Claude Agent SDK inside the jail, with a PreToolUse hook that counts and confines tool calls."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

_ROOTS = ("/task", "/jail", "/tmp", "/in")


def main() -> None:
    """Run the task of `/in/sdk.json`; print one JSON line a message, as the command line does."""
    job = json.loads(Path("/in/sdk.json").read_text())
    asyncio.run(_run(job))


async def _run(job: dict[str, Any]) -> None:
    sdk: Any = import_module("claude_agent_sdk")  # optional, so not imported where types are checked
    calls = 0

    async def before(data: Any, tool_id: Any, context: Any) -> dict[str, Any]:
        # `can_use_tool` is not asked for tools that are allowed already; this hook is asked for each.
        nonlocal calls
        calls += 1
        place = str((data.get("tool_input") or {}).get("file_path", "/task"))
        if calls > job["tool_calls"]:
            return _deny(f"the budget of {job['tool_calls']} tool calls is used up")
        if not str(Path("/task", place).resolve()).startswith(_ROOTS):
            return _deny("outside the working folder")
        return {}

    options = sdk.ClaudeAgentOptions(
        cwd="/task",
        cli_path=job["cli"],
        model=job["model"],
        tools=job["tools"],
        allowed_tools=job["tools"],
        disallowed_tools=job["refused"],
        permission_mode="dontAsk",
        max_budget_usd=job["usd"],
        strict_mcp_config=True,
        setting_sources=[],
        hooks={"PreToolUse": [sdk.HookMatcher(hooks=[before])]},
    )
    async for message in sdk.query(prompt=job["prompt"], options=options):
        row = asdict(message) if is_dataclass(message) and not isinstance(message, type) else {"text": str(message)}
        sys.stdout.write(json.dumps({"type": type(message).__name__, **row}, default=str) + "\n")
        sys.stdout.flush()


def _deny(reason: str) -> dict[str, Any]:
    decision = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason}
    return {"hookSpecificOutput": decision}


if __name__ == "__main__":
    main()
