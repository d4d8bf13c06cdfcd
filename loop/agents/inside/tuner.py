"""The embedded agent: searches the direction's settings with Optuna, guided by the cost model; needs no key.

Reads `task.json`, writes one change into `overlay.yaml` and says why in `note.json`. The same task always gives the
same change. It leaves no change when every combination was tried or is predicted to lose much.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import optuna
from ruamel.yaml import YAML

#: How many times the sampler is asked for a combination that was not tried.
_ASKS = 64
#: Predicted gain under which a combination is not worth a trial: twice the error of the cost model's predictions.
_LOSS = -0.2


def main() -> None:
    """Propose one change."""
    task = json.loads(Path("task.json").read_text())
    chosen = propose(task)
    if chosen is None:
        _note("every combination of this direction was tried, or is predicted to lose", "", None)
        sys.stdout.write("nothing left to try\n")
        return
    before = task["incumbent"]
    changed = {key: value for key, value in chosen.items() if value != before.get(key)}
    edit(Path("overlays", task["overlay"], "overlay.yaml"), {**tied(task, changed), **changed})
    gain = predicted(task, chosen)
    words = ", ".join(f"{key}: {before.get(key)} -> {value}" for key, value in sorted(changed.items()))
    _note(task["direction"]["why"], words, None if gain is None else 100 * gain)
    sys.stdout.write(f"{words}\n")


def propose(task: dict[str, Any]) -> dict[str, Any] | None:
    """Return values of all parameters, not tried before and not the incumbent's; None when none are left."""
    parameters = task["direction"]["parameters"]
    if not parameters:
        return None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space: dict[str, optuna.distributions.BaseDistribution] = {
        p["key"]: optuna.distributions.CategoricalDistribution(_texts(p)) for p in parameters
    }
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=task["seed"], n_startup_trials=4)
    )
    tried = {_key(task["incumbent"], parameters)}
    for params, value in [*_guide(task, parameters), *_past(task, parameters)]:
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=value))
    tried |= {_key(row["values"], parameters) for row in task["history"] if "values" in row}
    for number in range(_ASKS):
        guided = _best_guess(task, parameters, tried) if number == 0 else None
        trial = study.ask(space)
        values = guided or {key: json.loads(str(text)) for key, text in trial.params.items()}
        if _key(values, parameters) not in tried and _worth_a_trial(task, values):
            return values
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return _first_left(task, parameters, tried)


def predicted(task: dict[str, Any], values: dict[str, Any]) -> float | None:
    """Return the cost model's gain for these values over the incumbent; None when it says nothing about them."""
    logs = [
        math.log1p(p["predicted"][json.dumps(values[p["key"]])])
        for p in task["direction"]["parameters"]
        if json.dumps(values.get(p["key"])) in p["predicted"]
    ]
    return math.expm1(sum(logs)) if logs else None


def edit(path: Path, changed: dict[str, Any]) -> None:
    """Write the changed keys into the YAML file; comments and order stay."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096  # or long descriptions would be broken anew, and the change be hard to see
    content = yaml.load(path.read_text())
    dropped = sorted(
        (int(k.split(".")[1]) for k, v in changed.items() if k.startswith("patches.") and not v), reverse=True
    )
    for index in dropped:
        del content["patches"][index]
    for key, value in changed.items():
        if key.startswith("patches."):
            continue
        section, name = key.split(".")
        part = content.setdefault(section, {})
        if value is None:
            part.pop(name, None)
        else:
            part[name] = value
    with path.open("w") as handle:
        yaml.dump(content, handle)


def tied(task: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """Return the other keys that the changed ones take with them."""
    rows: dict[str, Any] = {}
    for parameter in task["direction"]["parameters"]:
        if parameter["key"] in changed:
            rows |= parameter.get("sets", {}).get(json.dumps(changed[parameter["key"]]), {})
    return rows


def _best_guess(task: dict[str, Any], parameters: list[dict[str, Any]], tried: set[str]) -> dict[str, Any] | None:
    """Return the incumbent with the one change that the cost model likes best, if it was not tried."""
    options = []
    for parameter in parameters:
        for text, gain in parameter["predicted"].items():
            values = {**task["incumbent"], parameter["key"]: json.loads(text)}
            if gain > 0 and _key(values, parameters) not in tried:
                options.append((gain, text, values))
    return max(options, key=lambda option: option[:2])[2] if options else None


def _guide(task: dict[str, Any], parameters: list[dict[str, Any]]) -> list[tuple[dict[str, str], float]]:
    """Return the cost model's predictions as if they had been measured, so that the sampler starts from them."""
    rows = []
    for parameter in parameters:
        for text, gain in sorted(parameter["predicted"].items()):
            values = {**task["incumbent"], parameter["key"]: json.loads(text)}
            rows.append((values, math.log1p(gain)))
    return _allowed(rows, parameters)


def _past(task: dict[str, Any], parameters: list[dict[str, Any]]) -> list[tuple[dict[str, str], float]]:
    rows = []
    for row in task["history"]:
        gain = row.get("feedback", {}).get("public_gain_percent")
        worth = math.log1p(gain / 100) if gain is not None and gain > -100 else -0.5  # broken counts as much slower
        rows.append((row.get("values", {}), worth))
    return _allowed(rows, parameters)


def _allowed(
    rows: list[tuple[dict[str, Any], float]], parameters: list[dict[str, Any]]
) -> list[tuple[dict[str, str], float]]:
    kept = []
    for values, worth in rows:
        texts = {p["key"]: json.dumps(values.get(p["key"])) for p in parameters}
        if all(texts[p["key"]] in _texts(p) for p in parameters):
            kept.append((texts, worth))
    return kept


def _worth_a_trial(task: dict[str, Any], values: dict[str, Any]) -> bool:
    gain = predicted(task, values)
    return gain is None or gain >= _LOSS


def _first_left(task: dict[str, Any], parameters: list[dict[str, Any]], tried: set[str]) -> dict[str, Any] | None:
    rows: list[dict[str, Any]] = [{}]
    for parameter in parameters:
        rows = [{**row, parameter["key"]: choice} for row in rows for choice in parameter["choices"]]
    left = (row for row in rows if _key(row, parameters) not in tried)
    return next((row for row in left if _worth_a_trial(task, row)), None)


def _texts(parameter: dict[str, Any]) -> list[str]:
    return [json.dumps(choice) for choice in parameter["choices"]]


def _key(values: dict[str, Any], parameters: list[dict[str, Any]]) -> str:
    return json.dumps([values.get(p["key"]) for p in parameters])


def _note(hypothesis: str, change: str, gain: float | None) -> None:
    note = {"hypothesis": hypothesis, "change": change, "predicted_gain_percent": gain}
    Path("note.json").write_text(json.dumps(note))


if __name__ == "__main__":
    main()
