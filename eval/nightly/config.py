"""The nightly configuration: what `nightly.yaml` may say (pydantic, strict)."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from specpilot_sglang.eval import scorers, suites

#: Word for the model and drafter that the package can prepare by itself.
PACKAGED = "smollm2"

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Suites = Annotated[dict[str, Positive], Field(min_length=1, description="Prompts of each suite.")]


def _error(what: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError("nightly", "{what}", {"what": what, "fix": fix})


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Deployment(_Strict):
    """One target and drafter, served three ways."""

    name: Name
    model: Annotated[str, Field(min_length=1, description=f"Target's folder, or `{PACKAGED}`.")] = PACKAGED
    draft: Annotated[str, Field(min_length=1, description=f"Drafter's folder, or `{PACKAGED}`.")] = PACKAGED
    overlay: Annotated[str | None, Field(description="Overlay name or path; the matching one by default.")] = None
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    max_running_requests: Positive = 8
    server_args: Annotated[tuple[str, ...], Field(strict=False, description="Added to all three servers.")] = ()
    stock_args: Annotated[tuple[str, ...], Field(strict=False, description="Stock's best public setting.")] = ()
    env: Annotated[dict[str, str], Field(description="Environment of all three servers.")] = {}
    cost: Annotated[
        str | None, Field(description="Cost table (`specpilot cost measure`) whose gaps the report shows.")
    ] = None


class Load(_Strict):
    """The timed workload of a block."""

    suites: Suites
    concurrency: Annotated[tuple[Positive, ...], Field(strict=False, min_length=1)] = (1,)
    max_new_tokens: Annotated[int, Field(ge=2)] = 256
    ignore_eos: bool = False


class Forcing(_Strict):
    """Token forcing against AR's own answers; once a run and arm."""

    suites: Suites
    max_new_tokens: Annotated[int, Field(ge=2)] = 128
    concurrency: Positive = 1


class Accuracy(_Strict):
    """Scored answers; once a run and arm, never timed."""

    suites: Suites
    concurrency: Positive = 8
    max_new_tokens: Annotated[int, Field(ge=2)] = 512


class Rules(_Strict):
    """When a run fails. Every rule compares the plugin with stock or AR of the same run."""

    slower_than_stock: Annotated[
        Share, Field(description="Loss against stock that is tolerated, on top of the interval.")
    ] = 0.01
    accept_length_drop: Annotated[Share, Field(description="Tolerated loss of accept length against stock.")] = 0.03
    forcing_excess: Annotated[Share, Field(description="Tolerated excess of the mismatch rate over stock's.")] = 0.005
    accuracy_alpha: Annotated[
        float, Field(gt=0, lt=0.5, description="Level of the paired sign test that accuracy dropped.")
    ] = 0.05
    confidence: Annotated[float, Field(gt=0.5, lt=1, description="Of every interval, two-sided.")] = 0.95


class ChangePoints(_Strict):
    """Change points over the history, by E-divisive with a t-test (Apache Otava)."""

    max_pvalue: Annotated[float, Field(gt=0, le=0.05)] = 0.001
    min_change: Annotated[Share, Field(description="Relative change under which a change point is ignored.")] = 0.02
    recent_runs: Annotated[Positive, Field(description="A bad change fails this many runs, then is history.")] = 7
    absolute_speed: Annotated[
        bool, Field(description="Judge tok/s too, not only ratios to AR and stock; needs a machine of its own.")
    ] = True


class Config(_Strict):
    """One nightly run."""

    version: Literal[1]
    name: Name
    history: Annotated[str, Field(min_length=1, description="SQLite file, on a local disk.")] = "history.sqlite"
    out: Annotated[str, Field(min_length=1, description="Folder of reports, blocks and server logs.")] = "."
    deployments: Annotated[tuple[Deployment, ...], Field(strict=False, min_length=1)]
    load: Load
    rounds: Annotated[Positive, Field(description="Fresh launches of every server; intervals need 2.")] = 3
    forcing: Forcing | None = None
    accuracy: Accuracy | None = None
    rules: Rules = Rules()
    change_points: ChangePoints = ChangePoints()
    start_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    resume_within_h: Annotated[float, Field(gt=0, description="An older unfinished run is given up.")] = 20.0

    @model_validator(mode="after")
    def _names_exist(self) -> Config:
        names = [d.name for d in self.deployments]
        if len(set(names)) != len(names):
            raise _error("two deployments have the same name", "give each deployment its own name")
        used = [self.load.suites, *(part.suites for part in (self.forcing, self.accuracy) if part)]
        for name in dict.fromkeys(name for part in used for name in part):
            if "=" not in name and name not in suites.SUITES:
                raise _error(f"unknown suite {name!r}", f"use one of {', '.join(suites.SUITES)}, or NAME=FILE.jsonl")
        unscored = [name for name in (self.accuracy.suites if self.accuracy else ()) if name not in scorers.SCORERS]
        if unscored:
            raise _error(f"suite {unscored[0]!r} has no scorer", f"use one of {', '.join(scorers.SCORERS)}")
        return self

    def measured(self, deployment: Deployment) -> str:
        """Return a hash of everything that decides what a figure of `deployment` means, rules left out."""
        parts: dict[str, Any] = {
            "deployment": deployment.model_dump(mode="json", exclude={"cost"}),
            "load": self.load.model_dump(mode="json"),
            "forcing": self.forcing.model_dump(mode="json") if self.forcing else None,
            "accuracy": self.accuracy.model_dump(mode="json") if self.accuracy else None,
        }
        return _digest(parts)

    def digest(self) -> str:
        """Return a hash of the whole configuration."""
        return _digest(self.model_dump(mode="json"))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
