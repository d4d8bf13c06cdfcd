"""The plan of a measurement: which servers to start, with which flags, and what to ask each of them."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specpilot_sglang.errors import SpecPilotError


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LoadPlan(_Strict):
    """Decode-speed load: `repeats` rounds of `concurrency` simultaneous requests of the same lengths (tokens)."""

    concurrency: int = Field(ge=1)
    output_len: int = Field(default=256, ge=2)
    repeats: int = Field(default=2, ge=1)


class RecordPlan(_Strict):
    """Real prompts: `suites` gives how many items of each, answered greedily at each concurrency in turn.

    With `force`, the name of an earlier server of the plan, that server's first run is token-forced through this one.
    """

    suites: dict[str, int]
    max_new_tokens: int = Field(default=200, ge=1)
    concurrency: list[int] = [1, 8]
    force: str | None = None


class ServerPlan(_Strict):
    """One server start and what is measured on it.

    `labels` name everything that makes a number from this server differ from a real deployment's ("random weights",
    "simulated acceptance length 4"); they travel with every result. `gets` are HTTP paths whose answers are kept.
    Neighbours in the plan with the same `group` start together and stay up until the last of them is measured: that
    saves start-up time where the GPU's memory holds them all, and only one of them has requests at any time.
    """

    name: str
    group: str | None = None
    args: list[str]
    env: dict[str, str] = {}
    labels: list[str] = []
    loads: list[LoadPlan] = []
    gets: list[str] = ["/server_info"]
    input_len: int = Field(default=128, ge=1, description="tokens of the random prompts of `loads`")
    records: RecordPlan | None = None
    start_timeout_s: float = 300.0
    load_timeout_s: float = 120.0


class Plan(_Strict):
    """A list of servers measured one after the other; `common_args` and `env` are added to each."""

    servers: list[ServerPlan]
    common_args: list[str] = []
    env: dict[str, str] = {}
    vocab_size: int = Field(ge=16, description="random prompt ids are drawn below this")
    tokenizer: str = Field(default="", description="model folder whose tokenizer encodes the prompts of `records`")
    stack_every_s: float = Field(default=2.0, gt=0)

    def arguments(self, server: ServerPlan) -> list[str]:
        """Return the full argument list of `server` for `python -m sglang.launch_server`, port excluded."""
        return [*self.common_args, *server.args]


def load_plan(path: Path, variables: dict[str, str]) -> Plan:
    """Read a YAML plan; `${NAME}` in it is replaced by `variables[NAME]`.

    Raises `SpecPilotError` that names the file and the key at fault.
    """
    text = path.read_text(encoding="utf-8")
    for name, value in variables.items():
        text = text.replace("${" + name + "}", value)
    if "${" in text:
        missing = text.split("${", 1)[1].split("}", 1)[0]
        raise SpecPilotError(f"variable {missing} is not set", where=str(path), fix=f"add --set {missing}=VALUE")
    try:
        return Plan.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SpecPilotError(first["msg"], where=f"{path}:{key}", fix="correct this key of the plan") from error
