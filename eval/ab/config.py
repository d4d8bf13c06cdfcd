"""The settings of an A/A or A/B, from a YAML file (pydantic, strict)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval import suites
from specpilot_sglang.eval.ab.rule import Rule
from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.load.run import Workload, draw
from specpilot_sglang.eval.presets import ar_args, dflash_args
from specpilot_sglang.overlay.yamlfile import key_path, read_yaml

#: The model that needs no path.
PACKAGED = "smollm2"
Positive = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ArmSettings(_Strict):
    """One arm: a preset for the model above, or `args`; with an overlay it runs the plugin.

    Attributes:
        name: short, used in file names.
        preset: `ar`, `stock` (DFLASH) or `specpilot` (DFLASH with the plugin and the overlay that matches).
        args: further server arguments, or all of them without a preset.
        env: added to the server's environment.
        overlay: name or path of the overlay to run.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,40}$")]
    preset: Literal["ar", "stock", "specpilot"] | None = "stock"
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    overlay: str | None = None


class LoadSettings(_Strict):
    """What each block asks of both arms; see `eval.load.Workload`."""

    suites: tuple[str, ...] = ("gsm8k",)
    requests: Positive = 16
    max_new_tokens: Positive = 256
    concurrency: Positive = 1
    ignore_eos: bool = False
    thinking: bool | None = None


class RuleSettings(_Strict):
    """See `eval.ab.rule.Rule`."""

    min_gain: float = Rule.min_gain
    noise_factor: float = Rule.noise_factor
    looks: tuple[int, ...] = Rule.looks
    alphas: tuple[float, ...] = Rule.alphas

    @model_validator(mode="after")
    def _usable(self) -> RuleSettings:
        try:
            self.rule()
        except SpecPilotError as exc:
            raise ValueError(exc.line()) from exc
        return self

    def rule(self) -> Rule:
        """Return the rule; raise `SpecPilotError` when it would spend more than 5%."""
        return Rule(self.min_gain, self.noise_factor, self.looks, self.alphas)


class Settings(_Strict):
    """An A/B (or, with the incumbent alone, an A/A).

    With `together` both servers of a block are up at the same time, for hosts that have room for both. Single requests
    then go to them in turns, so that a host whose speed changes every few seconds is the same to both; a load of more
    at a time goes to one after the other, while the other one is stopped. The model `smollm2` is the small one that is
    prepared from PyPI, with its drafter.
    """

    model: str
    draft: str | None = None
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    incumbent: ArmSettings
    candidate: ArmSettings | None = None
    load: LoadSettings = LoadSettings()
    rule: RuleSettings = RuleSettings()
    seed: int = 0
    together: bool = False

    def arm(self, settings: ArmSettings) -> Arm:
        """Return the arm that `settings` describe for this model and drafter."""
        return Arm(settings.name, (*self._preset(settings), *settings.args), settings.env, settings.overlay)

    def pool(self) -> list[suites.Item]:
        """Return all prompts of the suites."""
        return [item for name in self.load.suites for item in suites.load(name)]

    def workload(self, pool: list[suites.Item], block: int, blocks: int) -> Workload:
        """Return the workload of one block; no two of `blocks` blocks share a prompt."""
        load = self.load
        items = draw(pool, load.requests, seed=self.seed, block=block, blocks=blocks)
        return Workload(
            items, load.max_new_tokens, load.concurrency, self.seed, load.ignore_eos, thinking=load.thinking
        )

    def _preset(self, settings: ArmSettings) -> list[str]:
        if settings.preset is None:
            return []
        model, draft = self._pair()
        if settings.preset == "ar":
            return ar_args(model, dtype=self.dtype)
        if draft is None:
            raise SpecPilotError(f"preset {settings.preset!r} needs a drafter", where="draft", fix="add `draft: ...`")
        plugin = settings.preset == "specpilot" and settings.overlay is None
        args = dflash_args(model, draft, dtype=self.dtype)
        return [*args, *(("--speculative-plugin", "specpilot") if plugin else ())]

    def _pair(self) -> tuple[str, str | None]:
        if self.model != PACKAGED:
            return self.model, self.draft
        from specpilot_sglang.assets import drafter_path, prepare_smollm2

        return str(prepare_smollm2()), self.draft or str(drafter_path())


def load_settings(path: Path) -> Settings:
    """Read a YAML file; raise `SpecPilotError` naming file:line:key and the fix."""
    content = read_yaml(path)
    try:
        return Settings.model_validate(content.data)
    except ValidationError as exc:
        first = min(exc.errors(include_url=False), key=lambda error: content.line(error["loc"]))
        loc = first["loc"]
        where = f"{path}:{content.line(loc)}:{key_path(loc)}"
        what = first["msg"].removeprefix("Value error, ")
        raise SpecPilotError(what, where=where, fix="correct it; eval/ab/example.yaml is a whole file") from exc
