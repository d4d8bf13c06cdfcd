"""What a loop runs: deployment, agents, load, rule, executor; read from YAML, kept in the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab.config import LoadSettings, RuleSettings
from specpilot_sglang.loop.agents.settings import AgentSettings
from specpilot_sglang.overlay.yamlfile import key_path, read_yaml

Positive = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class ExecutorSettings(_Strict):
    """Where trials run; `address`, `gpus` and `python` are for `ray`."""

    kind: Literal["local", "ray"] = "local"
    address: str = "http://127.0.0.1:8265"
    gpus: Annotated[int, Field(ge=0)] = 0
    python: str = "python"


class LoopSettings(_Strict):
    """One loop.

    Attributes:
        model: target; the small pair that comes with the package when unset.
        draft: drafter.
        overlay: the first incumbent, by name or path; the one for the small pair when unset.
        dtype: data type of all servers.
        server_args: further arguments of all servers.
        agent: who proposes.
        agents: how many at a time, each in a direction of its own.
        candidates: proposals in all.
        load: what each block asks.
        rule: when a candidate is accepted.
        answers: sealed prompts for token forcing.
        seed: of everything random.
        memory: whether agents are given entries of the memory.
        executor: where trials run.
        cost_table: from `specpilot cost measure`; directions are equal without one.
        noise: JSON report of an A/A; the stored one of this host class when unset.
        host_lock: file that is locked for each block.
        canary: slow-down of a fixed piece of work from which on a host is not used; None does not look.
        together: whether both servers of a block are up at the same time and asked in turns; see `eval.ab.run`.
        jail_servers: whether servers under test run in a jail of their own.
        infra_retries: infrastructure failures of one job before it is given up.
        wall_s: time after which no new round begins.
        usd: money that agents may spend in all.
    """

    model: str | None = None
    draft: str | None = None
    overlay: str | None = None
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    server_args: Annotated[tuple[str, ...], Field(strict=False)] = ()
    agent: AgentSettings = AgentSettings()
    agents: Positive = 1
    candidates: Positive = 10
    load: LoadSettings = LoadSettings()
    rule: RuleSettings = RuleSettings()
    answers: Positive = 16
    seed: int = 0
    memory: bool = True
    executor: ExecutorSettings = ExecutorSettings()
    cost_table: str | None = None
    noise: str | None = None
    host_lock: str | None = None
    canary: Annotated[float, Field(gt=1)] | None = 1.5
    together: bool = False
    jail_servers: bool = True
    infra_retries: Positive = 3
    wall_s: Annotated[float, Field(gt=0)] | None = None
    usd: Annotated[float, Field(gt=0)] | None = None


def load_loop(path: Path | None) -> LoopSettings:
    """Read a YAML file; defaults without one; raise `SpecPilotError` naming file:line:key and the fix."""
    if path is None:
        return LoopSettings()
    content = read_yaml(path)
    try:
        return LoopSettings.model_validate(content.data)
    except ValidationError as exc:
        first = min(exc.errors(include_url=False), key=lambda error: content.line(error["loc"]))
        where = f"{path}:{content.line(first['loc'])}:{key_path(first['loc'])}"
        fix = "correct it; `specpilot loop schema` prints what is allowed"
        raise SpecPilotError(first["msg"].removeprefix("Value error, "), where=where, fix=fix) from exc
