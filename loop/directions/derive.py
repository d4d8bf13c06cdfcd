"""Directions of a deployment: from the cost table's largest losses, or equal ones when nothing was measured."""

from __future__ import annotations

from collections.abc import Mapping

from specpilot_sglang.loop.cost.gaps import Term, gaps
from specpilot_sglang.loop.cost.table import CostTable
from specpilot_sglang.loop.directions.direction import Direction, Parameter

#: Direction -> (terms of the cost model whose loss it can win back, reason).
_ABOUT: Mapping[str, tuple[tuple[str, ...], str]] = {
    "block-size": (("t_verify", "t_draft", "t_step"), "fit the number of drafted tokens to what is accepted"),
    "tree": (("t_verify", "t_step"), "verify several continuations at once, so that more tokens are accepted"),
    "levels": (("t_verify", "t_step"), "verify cheaply first and exactly once"),
    "weights": (("t_verify", "t_AR", "t_step"), "move fewer bytes of weights in each pass"),
    "graphs": (("t_verify", "t_draft", "t_overhead", "t_step"), "spend less between and inside kernels"),
    "scheduling": (("t_overhead", "t_step"), "spend less between passes"),
    "patches": (("t_overhead", "t_draft", "t_verify", "t_step"), "see whether each patch of the overlay still pays"),
    "verify-kernel": (("t_verify",), "bring the verify pass closer to its ceiling, in code"),
    "draft-kernel": (("t_draft",), "bring the drafter's passes closer to their ceiling, in code"),
    "overhead-code": (("t_overhead",), "take work off the path between passes, in code"),
}
_UNKNOWN_SHARE = 0.2


def directions(
    settings: Mapping[str, tuple[Parameter, ...]], table: CostTable | None, *, code: bool
) -> list[Direction]:
    """Return the directions, the largest possible gain first.

    Args:
        settings: parameters by direction, from `space.parameters`.
        table: the deployment's cost table; None when none was measured.
        code: whether agents write code, so that directions without parameters make sense.
    """
    names = [name for name in _ABOUT if name in settings or (code and name.endswith(("-kernel", "-code")))]
    losses = _losses(table)
    made = [_direction(name, settings.get(name, ()), losses) for name in names]
    return sorted((d for d in made if d.share > 0), key=lambda d: -d.share)


def _direction(name: str, parameters: tuple[Parameter, ...], losses: Mapping[str, Term]) -> Direction:
    terms, why = _ABOUT[name]
    best = max((gain for p in parameters for gain in p.predicted.values()), default=0.0)
    if not losses:
        return Direction(name=name, share=_UNKNOWN_SHARE, why=why, parameters=parameters)
    step = sum(term.seconds for key, term in losses.items() if key != "t_AR") or 1.0
    lost = max((losses[key].loss_s / step for key in terms if key in losses), default=0.0)
    text = ", ".join(f"{key} {1e3 * losses[key].loss_s:.2f} ms" for key in terms if key in losses)
    share = min(1.0, max(lost, best, 0.0))
    return Direction(name=name, share=share, why=f"{why}; lost: {text}", parameters=parameters, source="cost")


def _losses(table: CostTable | None) -> dict[str, Term]:
    return {term.name: term for term in gaps(table)} if table is not None else {}
