"""The overlay: what an `overlay.yaml` may say about one deployment (pydantic, strict)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from specpilot_sglang.overlay.server_args import ServerArgOverrides

#: Words that select an overlay and so cannot name one.
RESERVED_NAMES = frozenset({"auto", "auto-or-stock", "stock", "none"})


def _error(what: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError("overlay", "{what}", {"what": what, "fix": fix})


def _name(value: str) -> str:
    if value in RESERVED_NAMES:
        raise _error(f"{value!r} is reserved for choosing an overlay", "choose another name")
    return value


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as exc:
        what = f"{value!r} is not a regular expression ({exc})"
        raise _error(what, "put a backslash before brackets and dots that are meant literally") from None
    return value


def _specifier(value: str) -> str:
    try:
        SpecifierSet(value)
    except InvalidSpecifier:
        raise _error(f"{value!r} is not a version specifier", "write it like '==0.5.23' or '>=0.5.23,<0.6'") from None
    return value


Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$"), AfterValidator(_name)]
Regex = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_regex)]
Specifier = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_specifier)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Match(_Strict):
    """The deployments an overlay is for. Without any field it is used only when asked for by name."""

    target: Annotated[Regex | None, Field(description="Whole target architecture, as a regular expression.")] = None
    drafter: Annotated[Regex | None, Field(description="Whole drafter architecture, as a regular expression.")] = None
    gpu: Annotated[Regex | None, Field(description="Found anywhere in the CUDA device name, or `cpu`.")] = None
    sglang: Annotated[Specifier | None, Field(description="SGLang versions, as a PEP 440 specifier.")] = None


class Weights(_Strict):
    """How the target's weights are stored. `w12` is lossless: stored bits decode to the same BF16 bits."""

    format: Literal["bf16", "w12"] = "bf16"
    exclude: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...],
        Field(strict=False, description="Tensors whose name contains one of these stay BF16."),
    ] = ()
    max_bits: Annotated[
        float | None,
        Field(ge=12.0, le=16.0, description="A tensor that would need more bits per weight stays BF16."),
    ] = None

    @model_validator(mode="after")
    def _only_with_w12(self) -> Weights:
        if self.format == "bf16" and (self.exclude or self.max_bits is not None):
            raise _error("exclude and max_bits do nothing with format bf16", "set format: w12, or remove them")
        return self


class LmHead(_Strict):
    """The LM head. `certified_int8`: INT8 logits with a proven bound, undecided rows recomputed in BF16."""

    certified_int8: bool = False


class Tree(_Strict):
    """What the drafter's block becomes: one chain, or the best-first tree under a node budget.

    `budget` and `max_depth` bound a chain, too, so that tree against chain is `kind` alone: a chain of budget 32 is
    as long as the drafter's block.
    """

    kind: Literal["chain", "best-first"] = "chain"
    budget: Annotated[
        int | None, Field(ge=2, le=128, description="Most rows a request has in a verify pass, its root included.")
    ] = None
    max_depth: Annotated[int | None, Field(ge=1, le=64, description="Tokens from the root to the deepest node.")] = None
    call_budget: Annotated[
        int | None,
        Field(
            ge=0,
            le=8192,
            description="Rows that requests which share a verify pass may have beyond 8 each, all together: the more "
            "requests, the smaller their trees (64, 32, 16, 8 rows). Unset: 32 on a GPU, no bound on a CPU.",
        ),
    ] = None

    @model_validator(mode="after")
    def _tree_has_a_budget(self) -> Tree:
        if self.kind == "best-first" and self.budget is None:
            raise _error("kind best-first needs a budget", "add budget, e.g. 32 nodes")
        return self


class Verify(_Strict):
    """Verification levels: 1 = exact only; 2 = `cheap_rounds` passes over the 8-bit view, then one exact pass."""

    levels: Annotated[int, Field(ge=1, le=2)] = 1
    cheap_rounds: Annotated[int, Field(ge=0, le=8)] = 0

    @model_validator(mode="after")
    def _rounds_belong_to_two_levels(self) -> Verify:
        if (self.levels == 2) != (self.cheap_rounds > 0):
            fix = "set levels: 2 with cheap_rounds: 1 or more, or neither"
            raise _error("levels and cheap_rounds contradict each other", fix)
        return self


class Batching(_Strict):
    """How a batch shares the verify pass. Defaults are stock behaviour."""

    shared_node_budget: Annotated[int | None, Field(ge=2, le=8192, description="Nodes a step, whole batch.")] = None
    block_size: Annotated[Literal["fixed", "per-request"], Field(description="Draft block size.")] = "fixed"
    admission: Annotated[Literal["stock", "cost-aware"], Field(description="When a prefill may interrupt.")] = "stock"


class PatchRef(_Strict):
    """A function in the overlay's own folder; takes nothing, returns `specpilot_sglang.patching.Patch` objects."""

    file: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*\.py$",
            description="Path inside the overlay's folder, `/`-separated.",
        ),
    ]
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="Module-level function.")]
    note: Annotated[str, Field(max_length=500)] = ""


class Overlay(_Strict):
    """One deployment's overlay. Unset parts mean stock SGLang behaviour."""

    name: Name
    description: Annotated[str, Field(max_length=2000)] = ""
    match: Match = Match()
    weights: Weights = Weights()
    lm_head: LmHead = LmHead()
    tree: Tree = Tree()
    verify: Verify = Verify()
    batching: Batching = Batching()
    server_args: ServerArgOverrides = ServerArgOverrides()
    patches: Annotated[tuple[PatchRef, ...], Field(strict=False, max_length=32)] = ()

    @model_validator(mode="after")
    def _one_width(self) -> Overlay:
        bounded = self.tree.budget is not None or self.tree.max_depth is not None
        if bounded and self.server_args.speculative_num_draft_tokens is not None:
            what = "tree and server_args.speculative_num_draft_tokens both set the width of a verify pass"
            raise _error(what, "remove server_args.speculative_num_draft_tokens")
        return self

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Names of the mechanisms the overlay turns on, in a fixed order; empty = stock behaviour."""
        wanted = {
            "w12": self.weights.format == "w12",
            "certified-int8-lm-head": self.lm_head.certified_int8,
            "best-first-tree": self.tree.kind == "best-first",
            "two-level-verify": self.verify.levels == 2,
            "shared-node-budget": self.batching.shared_node_budget is not None,
            "per-request-block": self.batching.block_size == "per-request",
            "cost-aware-admission": self.batching.admission == "cost-aware",
        }
        return tuple(name for name, on in wanted.items() if on)


def overlay_json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of `overlay.yaml`, for editors and agents."""
    schema = Overlay.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "SpecPilot overlay"}
