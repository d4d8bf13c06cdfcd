"""The order of the demonstration's servers: nothing else loads while one is timed, and none is left behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.demo import runner
from specpilot_sglang.eval.demo.plan import Arm, Plan
from specpilot_sglang.eval.records import Request

PLAN = Plan(Path("model"), Path("draft"))
ARMS = [Arm(name, name, []) for name in ("ar", "stock", "specpilot")]


class Watch:
    def stage(self, arm: str, what: str, total: int | None) -> None: ...

    def step(self, done: int) -> None: ...


class FakeServer:
    """Stands for a server and writes down what happens to it."""

    events: ClassVar[list[str]] = []
    broken: ClassVar[str] = ""

    def __init__(self, args: Sequence[str], *, name: str, log: Path, start_timeout_s: float) -> None:
        self.name, self.command, self.start_s, self.client = name, list(args), 1.0, self
        self.alive = False

    def launch(self) -> None:
        self.alive = True
        self.events.append(f"launch {self.name}")

    def start(self) -> None:
        if self.name == self.broken:
            raise SpecPilotError("did not start")
        self.events.append(f"ready {self.name}")

    def stop(self) -> None:
        if self.alive:
            self.events.append(f"stop {self.name}")
        self.alive = False

    def attestation(self) -> None:
        return None


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    FakeServer.events, FakeServer.broken = [], ""

    def measure(client: FakeServer, *_: Any) -> list[Request]:
        client.events.append(f"timed {client.name}")
        return [Request("a", "s", [1], [2], "stop")]

    def force(run: Any, client: FakeServer, **_: Any) -> list[Any]:
        client.events.append(f"forced {client.name}")
        return []

    replacements = {
        **{"Server": FakeServer, "_measure": measure, "force": force, "about_server": lambda client: {}},
        **{"_warm_up": lambda *_: None, "tokenise": lambda plan: runner.Prompts([], [])},
    }
    for name, value in replacements.items():
        monkeypatch.setattr(runner, name, value)
    return FakeServer.events


def test_on_a_cpu_the_next_server_loads_beside_token_forcing_only(
    events: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "gpu_name", lambda: "cpu")
    runner._run_arms(PLAN, ARMS, Watch(), tmp_path)
    assert events == [
        *("launch ar", "ready ar", "timed ar", "launch stock", "stop ar"),
        *("ready stock", "timed stock", "launch specpilot", "forced stock", "stop stock"),
        *("ready specpilot", "timed specpilot", "forced specpilot", "stop specpilot"),
    ]


def test_on_a_gpu_one_server_stops_before_the_next_is_launched(
    events: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "gpu_name", lambda: "NVIDIA H200")
    runner._run_arms(PLAN, ARMS, Watch(), tmp_path)
    changes = [event for event in events if event.startswith(("launch", "stop"))]
    assert changes == [f"{what} {arm.name}" for arm in ARMS for what in ("launch", "stop")]


def test_a_server_that_does_not_start_leaves_none_behind(
    events: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "gpu_name", lambda: "cpu")
    FakeServer.broken = "stock"
    with pytest.raises(SpecPilotError, match="did not start"):
        runner._run_arms(PLAN, ARMS, Watch(), tmp_path)
    assert [event for event in events if event.startswith("stop")] == ["stop ar", "stop stock"]
    assert "launch specpilot" not in events
