"""One nightly run from configuration to report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from specpilot_sglang import __version__
from specpilot_sglang.eval import provenance
from specpilot_sglang.eval.demo import preflight
from specpilot_sglang.eval.demo.plan import Plan
from specpilot_sglang.eval.nightly import document as documents
from specpilot_sglang.eval.nightly import report
from specpilot_sglang.eval.nightly.changes import require_otava
from specpilot_sglang.eval.nightly.config import Config, Deployment
from specpilot_sglang.eval.nightly.folders import prune, run_folder
from specpilot_sglang.eval.nightly.history import History
from specpilot_sglang.eval.nightly.plan import BlockKey, Pair, block_keys, packaged_pair, resolve
from specpilot_sglang.eval.nightly.run import Night, Runner, locked, measure_night
from specpilot_sglang.eval.presets import block_size
from specpilot_sglang.eval.report.page import require_packages
from specpilot_sglang.loop.cost.gaps import gaps
from specpilot_sglang.loop.cost.table import find_table


class Watcher(Protocol):
    """Hears what happens; the command line draws it."""

    def block(self, key: BlockKey, number: int, total: int, state: str) -> None:
        """See `run.Watcher`."""

    def say(self, line: str) -> None:
        """Hear what the current block is doing."""


@dataclass(frozen=True)
class Place:
    """Where a night reads and writes.

    Attributes:
        history: SQLite file.
        out: folder of reports and raw files.
        base: what relative paths of the configuration start from.
    """

    history: Path
    out: Path
    base: Path = Path()


@dataclass(frozen=True)
class Result:
    """A finished night: its document, and the report's files by suffix."""

    document: dict[str, Any]
    paths: dict[str, Path]


def place_of(config: Config, base: Path) -> Place:
    """Return the night's files; relative ones are taken from `base`."""
    history, out = ((base / Path(text).expanduser()).resolve() for text in (config.history, config.out))
    return Place(history, out, base)


def blocks_of(config: Config) -> int:
    """Return how many servers a night starts."""
    return len(block_keys(config))


def check(config: Config, base: Path = Path()) -> None:
    """Raise `SpecPilotError` for what would otherwise stop the night after the first servers."""
    require_packages("the nightly run", extra="nightly")
    require_otava()
    costs_of(config, base)
    for deployment in config.deployments:
        pair = resolve(deployment, packaged_pair)
        block_size(pair.draft)
        preflight.check(Plan(pair.model, pair.draft, deployment.overlay, dtype=deployment.dtype))


def run(
    config: Config,
    place: Place,
    watch: Watcher,
    *,
    fresh: bool = False,
    keep: int = 30,
    host: Path | None = None,
    runner: Runner | None = None,
) -> Result:
    """Run or resume the night, judge it, write its report and its figures.

    Args:
        config: the configuration.
        place: its files.
        watch: hears what happens.
        fresh: begin anew although an unfinished run could be resumed.
        keep: runs whose raw files stay on disk.
        host: lock file that every block holds; see `run.measure_night`.
        runner: measures a block; starts servers by default.

    Raises:
        SpecPilotError: AR or stock cannot be measured, another night runs, or a file cannot be used.
    """
    begin = time.monotonic()
    busy = provenance.busy_warning(provenance.load_average(), provenance.usable_cores())
    code, machine = code_name(), host_name()
    pairs = {d.name: resolve(d, packaged_pair) for d in config.deployments} if runner is None else {}
    with locked(place.history), History(place.history) as history:
        row = history.begin(
            name=config.name,
            config=config.model_dump(mode="json"),
            digest=config.digest(),
            code=code,
            host=machine,
            within_h=config.resume_within_h,
            fresh=fresh,
        )
        if row.resumed:
            watch.say(f"resuming run {row.id} of {row.started_at}")
        measured = measure_night(
            config, history, row, place.out, runner or _server_runner(watch), _lookup(pairs, config), watch, host
        )
        facts = provenance.collect(_attestation(measured), history=str(place.history), seed=0, busy=busy)
        document, figures = documents.build(measured, config, history, _pairs(pairs, config), code, machine, facts)
        for deployment, terms in zip(document["deployments"], costs_of(config, place.base), strict=True):
            deployment["cost"] = terms
        document["night"]["seconds"] = time.monotonic() - begin
        report.write(document, run_folder(place.out, row.id))
        paths = report.write(document, place.out)
        verdict = {"state": document["state"], "regressions": document["regressions"]}
        history.finish(row.id, verdict, figures)
        prune(place.out, keep)
    return Result(document, paths)


def costs_of(config: Config, base: Path) -> list[dict[str, Any] | None]:
    """Return each deployment's terms of a step from its cost table, None where none is configured."""
    rows: list[dict[str, Any] | None] = []
    for deployment in config.deployments:
        if deployment.cost is None:
            rows.append(None)
            continue
        table = find_table(deployment.cost, base)
        rows.append({"name": table.name, "labels": list(table.labels), "terms": [vars(t) for t in gaps(table)]})
    return rows


def code_name() -> str:
    """Return what is under test: the commit, `+` when files differ from it, or the package's version."""
    git = provenance.git_state()
    if not git:
        return f"{__version__}"
    return f"{git['commit'][:10]}{'+' if git['changed'] else ''}"


def host_name() -> str:
    """Return the kind of machine; figures of different kinds are never one history."""
    gpus = provenance.gpu_names()
    return f"{len(gpus)}x {gpus[0]}" if gpus else f"{provenance.cpu_name()}, {provenance.usable_cores()} cores"


def _server_runner(watch: Watcher) -> Runner:
    from specpilot_sglang.eval.nightly.measure import ServerRunner

    return ServerRunner(lambda line: watch.say(f"    {line}"))


def _lookup(pairs: Mapping[str, Pair], config: Config) -> Any:
    known = _pairs(pairs, config)

    def find(deployment: Deployment) -> Pair:
        return known[deployment.name]

    return find


def _pairs(pairs: Mapping[str, Pair], config: Config) -> dict[str, Pair]:
    # A runner that starts no server needs no model: the folders are then only names.
    return {d.name: pairs.get(d.name, Pair(Path(d.model), Path(d.draft), "")) for d in config.deployments}


def _attestation(night: Night) -> Mapping[str, Any] | None:
    found = [b.attestation for key, b in night.blocks.items() if key.arm == "specpilot" and b.attestation]
    return found[-1] if found else None
