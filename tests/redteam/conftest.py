"""What the red team shares: a real jail, a real gate, and a journal in which each attack must show."""

from __future__ import annotations

import pytest

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.jail.bubblewrap import python
from specpilot_sglang.loop.jail.export import export
from specpilot_sglang.loop.jail.limits import Limits
from specpilot_sglang.loop.jail.running import run_in_jail
from specpilot_sglang.loop.jail.spec import JailSpec
from specpilot_sglang.loop.journal import Journal
from specpilot_sglang.overlay import load_overlay

LIMITS = Limits(wall_s=25.0, cpu_s=10, memory_mib=256, address_space_mib=2048, processes=24, disk_mib=4, output_mib=1)
SECRET = "sealed-prompt-4711"


@pytest.fixture(scope="session")
def jail():
    """Skips when agents cannot be jailed on this machine, which is what the loop would refuse as well."""
    from specpilot_sglang.loop.jail.trial import require_jail

    try:
        require_jail()
    except SpecPilotError as exc:
        # A machine without bubblewrap is skipped; a jail that starts and lacks a wall is what the tests are for.
        if "not true: it" in exc.what:
            pytest.fail(exc.line())
        pytest.skip(exc.line())


@pytest.fixture
def loop(tmp_path):
    """A loop's folder with things worth stealing, an incumbent, another agent's folder, and a repository's history."""
    state = tmp_path / "state"
    for place, text in {
        "trials/t/evidence/sealed.json": SECRET,
        "controller.key": SECRET,
        "agents/other/in/tree/overlays/toy/overlay.yaml": SECRET,
        "repository/.git/HEAD": SECRET,
    }.items():
        path = state / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
    overlay = state / "generations" / "0000" / "toy"
    overlay.mkdir(parents=True)
    (overlay / "overlay.yaml").write_text("name: toy\nserver_args:\n  speculative_num_draft_tokens: 2\n")
    (overlay / "evidence.json").write_text(SECRET)
    (overlay / ".git").mkdir()
    (overlay / ".git" / "packed-refs").write_text(SECRET)
    return state


@pytest.fixture
def incumbent(loop):
    return load_overlay(str(loop / "generations" / "0000" / "toy"))


@pytest.fixture
def journal(loop):
    with Journal(loop) as opened:
        yield opened


@pytest.fixture
def attack(loop, tmp_path, jail, journal):
    """Runs a program in the jail and journals how it ended; the program prints GOT and what it got."""

    def call(program, **limits):
        inputs = export(
            loop / "generations" / "0000" / "toy",
            None,
            {"task": "x"},
            tmp_path / f"inputs{len(list(tmp_path.iterdir()))}",
        )
        chosen = LIMITS.model_copy(update=limits)
        result = run_in_jail(JailSpec(inputs, (python(), "-I", "-S", "-c", program), limits=chosen))
        journal.note("agent", "propose:0000:0", **result.facts())
        assert journal.events("agent")[-1].data["ended"] == result.ended
        return result

    return call
